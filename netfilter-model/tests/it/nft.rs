//! Rulesets of nftables: the model and the kernel, packet by packet.
//!
//! The kernel's own listing of the rules is what the model reads. Both must agree about what
//! leaves the node by which device, with which addresses, and about what rules count.

mod arms;
mod cases;

use arms::{Case, Kernel};

use crate::lab::skip;

/// Runs cases; all that differ are told at once.
fn agree(test: &str, cases: &[Case]) {
    let mut kernel = match Kernel::try_new() {
        Ok(kernel) => kernel,
        Err(reason) => return skip(test, &reason),
    };
    let differences: Vec<String> = cases.iter().filter_map(|case| kernel.differ(case)).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn verdicts_flow_as_in_the_kernel() {
    agree("verdicts_flow_as_in_the_kernel", cases::VERDICTS);
}

#[test]
fn maps_and_sets_are_the_kernels() {
    agree("maps_and_sets_are_the_kernels", cases::SETS);
}

#[test]
fn expressions_are_the_kernels() {
    agree("expressions_are_the_kernels", cases::EXPRESSIONS);
}

#[test]
fn translations_are_the_kernels() {
    agree("translations_are_the_kernels", cases::NAT);
}

#[test]
fn refusals_are_the_kernels() {
    agree("refusals_are_the_kernels", cases::REFUSALS);
}
