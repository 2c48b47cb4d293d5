//! Runs of whole clusters, held against closed forms and against themselves.

mod affinity;
mod affinity_memory;
mod budget;
mod cases_balance;
mod cases_ipvs;
mod closed_form;
mod determinism;
mod ebpf;
mod independence;
mod ipvs;
mod ipvs_runs;
#[allow(dead_code)] // What only the tests of the packet model need of it.
#[path = "../../../netfilter-model/tests/it/lab.rs"]
mod lab;
mod lifecycle;
mod modes;
mod neighbour;
mod nftables;
mod pipeline;
mod proxy;
mod rules;
mod support;
mod swarm;
mod tidy;
