"""The system of record: deliveries, episodes, quality, labels, steps and manifests, under constraints."""
