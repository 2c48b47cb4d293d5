//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// Simulates Kubernetes Services whose rules arrive late, packet by packet, and counts what is lost.
#[derive(Debug, Parser)]
#[command(name = "rulelag", version)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
#[command(
    after_help = "Exit status: 0 done, every judged expectation held; 1 some did not; 2 bad input;\n\
                  3 a limit was hit, or interrupted; 4 results could not be written."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a scenario once: CSV, charts, summary; judges its expectations
    Run(Run),
    /// Runs the grid of a scenario's `sweep:`, many runs side by side
    Sweep(Sweep),
    /// Lists the built-in scenarios, or shows one
    Scenarios(Scenarios),
    /// Prints the JSON Schema of scenario files
    Schema,
    /// Prints a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// What `run` and `sweep` share.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Where results go; a result that is there is replaced
    #[arg(long, value_name = "DIR", default_value = "out")]
    pub(crate) out: PathBuf,
    /// The seed of all randomness: the same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Sets a value of the scenario, as in `--set cluster.nodes=100`; may be repeated
    #[arg(long, value_name = "PATH=VALUE")]
    pub(crate) set: Vec<String>,
}

/// `rulelag run`.
#[derive(Debug, Args)]
#[command(
    after_help = "A run always writes its details, too: losses.csv, propagation.csv, timeline.csv."
)]
pub(crate) struct Run {
    /// A scenario file, or the name of a built-in scenario
    pub(crate) scenario: String,
    /// Which replication to run: a sweep's run of the same point and number has the same results
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) replication: u32,
    /// What `run` and `sweep` share.
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `rulelag sweep`.
#[derive(Debug, Args)]
pub(crate) struct Sweep {
    /// A scenario file, or the name of a built-in scenario
    #[arg(default_value = crate::library::DEFAULT)]
    pub(crate) scenario: String,
    /// How many runs at once; as many as there are processors if left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// How often each point is run, instead of what the scenario says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) replications: Option<u32>,
    /// Also writes losses.csv, propagation.csv and timeline.csv
    #[arg(long)]
    pub(crate) detail: bool,
    /// What `run` and `sweep` share.
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `rulelag scenarios`.
#[derive(Debug, Args)]
pub(crate) struct Scenarios {
    /// What to do with them; lists them if left out
    #[command(subcommand)]
    pub(crate) action: Option<ScenariosAction>,
}

/// What to do with the built-in scenarios.
#[derive(Debug, Subcommand)]
pub(crate) enum ScenariosAction {
    /// Lists the built-in scenarios and what each asks
    List,
    /// Prints a scenario, to start a file of your own from
    Show {
        /// Its name
        name: String,
    },
}
