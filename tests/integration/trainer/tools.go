// The controllers of TrainJobs and their runtimes alone. The program of Kubeflow Trainer also serves
// webhooks, with a certificate in a folder that only one process of a machine can have.
package main

import (
	"flag"
	"os"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/controller"
	"github.com/kubeflow/trainer/v2/pkg/runtime/core"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlpkg "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	schedulerplugins "sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
)

func main() {
	// The flag --kubeconfig is that of controller-runtime.
	flag.Parse()
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(trainer.AddToScheme(scheme))
	utilruntime.Must(jobset.AddToScheme(scheme))
	utilruntime.Must(schedulerplugins.AddToScheme(scheme))
	failed := func(what string, err error) {
		ctrl.Log.Error(err, what)
		os.Exit(1)
	}
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:  scheme,
		Client:  client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		failed("manager", err)
	}
	ctx := ctrl.SetupSignalHandler()
	runtimes, err := core.New(ctx, manager.GetClient(), manager.GetFieldIndexer())
	if err != nil {
		failed("runtimes", err)
	}
	if name, err := controller.SetupControllers(manager, runtimes, ctrlpkg.Options{}); err != nil {
		failed(name, err)
	}
	if err := manager.Start(ctx); err != nil {
		failed("run", err)
	}
}
