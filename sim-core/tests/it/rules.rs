//! The rules that a node holds.
