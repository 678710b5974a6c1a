// The controller of MPIJobs alone. The operator's own program also elects a leader in a namespace that
// must exist, and listens on port 8080, which only one process of a machine can.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"

	clientset "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	kubeflowscheme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	informers "github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of a kubeconfig")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Fatal(err)
	}
	config.QPS, config.Burst = 1000, 2000
	if err := kubeflowscheme.AddToScheme(clientgoscheme.Scheme); err != nil {
		klog.Fatal(err)
	}
	kube, jobs := kubernetes.NewForConfigOrDie(config), clientset.NewForConfigOrDie(config)
	kubeFactory := kubeinformers.NewSharedInformerFactory(kube, 0)
	jobFactory := informers.NewSharedInformerFactory(jobs, 0)
	made, err := controller.NewMPIJobController(
		kube, jobs, nil, nil,
		kubeFactory.Core().V1().ConfigMaps(),
		kubeFactory.Core().V1().Secrets(),
		kubeFactory.Core().V1().Services(),
		kubeFactory.Batch().V1().Jobs(),
		kubeFactory.Core().V1().Pods(),
		kubeFactory.Scheduling().V1().PriorityClasses(),
		jobFactory.Kubeflow().V2beta1().MPIJobs(),
		"", "",
	)
	if err != nil {
		klog.Fatal(err)
	}
	kubeFactory.Start(ctx.Done())
	jobFactory.Start(ctx.Done())
	if err := made.Run(2, ctx.Done()); err != nil {
		klog.Fatal(err)
	}
}
