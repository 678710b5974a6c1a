"""`rackgate kueue-config`: the configuration of Kueue as settings of Rackgate."""
