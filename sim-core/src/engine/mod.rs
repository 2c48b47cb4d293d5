//! The engine: queue, random streams, distributions, fingerprint.
