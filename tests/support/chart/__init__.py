"""Writes the Helm chart, deploy/helm/rackgate, and deploy/elsewhere from the manifests of deploy/.

`python -m tests.support.chart` writes them, and `--check` fails if a file is stale. Written by hand
are Chart.yaml, .helmignore, and some templates: see `BY_HAND`.
"""
