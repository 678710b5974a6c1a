"""The playground's control plane: real components on loopback, no container engine."""
