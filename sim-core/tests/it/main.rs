//! Runs of whole clusters, held against closed forms and against themselves.

mod closed_form;
mod determinism;
mod independence;
mod lifecycle;
mod rules;
mod support;
