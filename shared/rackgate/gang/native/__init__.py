"""Native PodGroups: the objects by which kube-scheduler itself binds all pods of a gang, or none.

One plain model, and an adapter for each generation of the API that a cluster may serve.
Source: section 8 of the gang design.
"""
