//! The model against the running kernel.

mod kernel;
mod lab;
