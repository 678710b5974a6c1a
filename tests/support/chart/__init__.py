"""Writes the Helm chart, deploy/helm/rackgate, from the manifests of deploy/.

`python -m tests.support.chart` writes it, and `--check` fails if it is stale. Written by hand are
only Chart.yaml, .helmignore, and in templates NOTES.txt and _helpers.tpl.
"""
