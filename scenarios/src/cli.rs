//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use sim_core::proxy::matrix::Mode;

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
    /// Traces one packet through a node's rules: every way, and the exact probability of each
    Explain(Explain),
    /// Prints the rules that a node's proxy holds for Kubernetes objects
    Rules(Rules),
    /// Prints who reaches what: kinds of clients, a Service's addresses, modes of the proxy
    Matrix(Matrix),
    /// Compares the packet model with the kernel of this machine on random cases (root, Linux)
    Prove(Prove),
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

/// `rulelag explain`.
#[derive(Debug, Args)]
#[command(
    after_help = "RULES are what iptables-save, iptables -S, iptables -L, nft list ruleset, ipset save, \
                  ipvsadm or\nconntrack -L print, also compressed by gzip, or a scenario with --node.\n\n\
                  A packet is `PROTOCOL SRC[:PORT] > DST[:PORT] [FLAGS] [OPTION VALUE]...`, as in\n\
                  `tcp 10.244.1.5:40000 > 10.96.0.10:80 syn`, `udp [fd00::5]:7000 > [fd00::a]:53`,\n\
                  `icmp 10.244.1.5 > 10.96.0.10 type 8 code 0 id 7`; options are mark, ttl, len, tos, dscp,\n\
                  mac, uid, gid.\n\n\
                  Exit status: 0 whatever becomes of the packet; 2 bad input."
)]
pub(crate) struct Explain {
    /// Files of rules, `-` for standard input; several make one node
    #[arg(required_unless_present = "hooks")]
    pub(crate) rules: Vec<String>,
    /// The packet, as in `tcp 10.244.1.5:40000 > 10.96.0.10:80 syn`
    #[arg(long, value_name = "PACKET", required_unless_present = "hooks")]
    pub(crate) packet: Option<String>,
    /// The device that the packet comes in by
    #[arg(long = "in", value_name = "DEVICE", required_unless_present_any = ["local", "hooks"])]
    pub(crate) in_dev: Option<String>,
    /// The packet is made on the node itself
    #[arg(long, conflicts_with = "in_dev")]
    pub(crate) local: bool,
    /// The node's devices, routes, sysctls and sockets: YAML, `ip -j addr` or `ip -j route`
    #[arg(long, value_name = "FILE")]
    pub(crate) host: Vec<String>,
    /// Connections that the node knows: the output of `conntrack -L`
    #[arg(long, value_name = "FILE")]
    pub(crate) conntrack: Vec<String>,
    /// The sets that rules name: the output of `ipset save` or `ipset -L`
    #[arg(long, value_name = "FILE")]
    pub(crate) ipset: Vec<String>,
    /// Virtual servers: the output of `ipvsadm -Ln` or `ipvsadm -Sn`
    #[arg(long, value_name = "FILE")]
    pub(crate) ipvs: Vec<String>,
    /// The node whose rules a scenario is to give, as in `node-0`
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// How to print it
    #[arg(long, short = 'o', value_enum, default_value_t = Form::Text)]
    pub(crate) output: Form,
    /// Prints which table runs at which hook, in what order, and how many rules each has
    #[arg(long)]
    pub(crate) hooks: bool,
}

/// How `explain` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people
    Text,
    /// For programs
    Json,
    /// A graph for Graphviz
    Dot,
}

/// `rulelag rules`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "FILES are what `kubectl get -o yaml` or `-o json` prints, or a chart's output: Services and\n\
                  EndpointSlices, Nodes, and a KubeProxyConfiguration. Unknown fields are errors.\n\n\
                  Exit status: 0 printed; 2 bad input. `rules diff`: 1 if the rules differ."
)]
pub(crate) struct Rules {
    /// What to do with them; prints them if left out
    #[command(subcommand)]
    pub(crate) action: Option<RulesAction>,
    /// Whose rules, of which proxy
    #[command(flatten)]
    pub(crate) side: RulesSide,
    /// How to print them; as the kernel lists them if left out: `save`, `nft`, `ipvsadm` or `ebpf`
    #[arg(long, short = 'o', value_enum)]
    pub(crate) output: Option<RulesForm>,
    /// Prints this table alone, of iptables mode
    #[arg(long, short = 't', value_name = "TABLE")]
    pub(crate) table: Option<String>,
    /// With `-o restore`: what the proxy writes when these files' objects become FILES' ones
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) since: Vec<String>,
}

/// What to do with rules.
#[derive(Debug, Subcommand)]
pub(crate) enum RulesAction {
    /// Compares the rules of two nodes, modes, versions or sets of files
    Diff(RulesDiff),
}

/// A node's proxy.
#[derive(Clone, Debug, Args)]
pub(crate) struct RulesSide {
    /// Files or folders of Kubernetes objects, `-` for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1..)]
    pub(crate) files: Vec<String>,
    /// The node
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// The proxy's mode, instead of what the configuration says
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) mode: Option<RulesMode>,
    /// The family of addresses; that of the node's first address if left out
    #[arg(long, value_enum, value_name = "4|6")]
    pub(crate) family: Option<RulesFamily>,
    /// The version of Kubernetes: `1.30`, whose output rules are tested against, to `current`
    #[arg(long, value_name = "VERSION", default_value = "1.30")]
    pub(crate) profile: String,
    /// The files are one scenario, by file or built-in name: what its node holds at this time
    #[arg(long, value_name = "TIME", conflicts_with = "family")]
    pub(crate) at: Option<String>,
    /// With --at: the seed of the scenario's run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also makes the chains by whose absence kube-proxy notices a flush
    #[arg(long)]
    pub(crate) canaries: bool,
}

/// `rulelag rules diff`.
#[derive(Debug, Args)]
pub(crate) struct RulesDiff {
    /// The first side
    #[command(flatten)]
    pub(crate) side: RulesSide,
    /// How the rules are written; as the kernel lists them if left out
    #[arg(long, short = 'o', value_enum)]
    pub(crate) output: Option<RulesForm>,
    /// The second side's files
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) to: Vec<String>,
    /// The second side's node
    #[arg(long, value_name = "NAME")]
    pub(crate) to_node: Option<String>,
    /// The second side's mode
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) to_mode: Option<RulesMode>,
    /// The second side's family
    #[arg(long, value_enum, value_name = "4|6")]
    pub(crate) to_family: Option<RulesFamily>,
    /// The second side's version of Kubernetes
    #[arg(long, value_name = "VERSION")]
    pub(crate) to_profile: Option<String>,
    /// The second side's time in the scenario
    #[arg(long, value_name = "TIME")]
    pub(crate) to_at: Option<String>,
}

/// How `rules` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RulesForm {
    /// As iptables-save does
    Save,
    /// As what the proxy feeds the kernel's tools
    Restore,
    /// As iptables -S does
    #[value(name = "S")]
    S,
    /// As iptables -L -n does
    #[value(name = "L")]
    L,
    /// As nft list ruleset does
    Nft,
    /// As ipvsadm -Ln does
    Ipvsadm,
    /// As cilium bpf lb list does
    Ebpf,
    /// Counts
    Summary,
}

/// Modes of `rules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RulesMode {
    /// kube-proxy's iptables mode
    Iptables,
    /// kube-proxy's nftables mode
    Nftables,
    /// kube-proxy's IPVS mode
    Ipvs,
    /// No kube-proxy: Cilium's eBPF maps
    Ebpf,
    /// kube-proxy's userspace mode, as of 1.25
    Userspace,
}

/// Families of `rules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RulesFamily {
    /// IPv4
    #[value(name = "4")]
    V4,
    /// IPv6
    #[value(name = "6")]
    V6,
}

/// `rulelag matrix`.
#[derive(Debug, Args)]
#[command(
    after_help = "FILES are as for `rulelag rules`. Every client of the matrix sends through the rules that\n\
                  each node's proxy makes of them; all ways of its packets are followed, to the\n\
                  endpoint and back, with exact probabilities.\n\n\
                  Exit status: 0 printed; 2 bad input; 4 results could not be written."
)]
pub(crate) struct Matrix {
    /// Files or folders of Kubernetes objects, `-` for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) files: Vec<String>,
    /// The node that packets from outside come to; the first by name if left out
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// The Services; all if left out
    #[arg(long, value_name = "NAMESPACE/NAME", num_args = 1..)]
    pub(crate) service: Vec<String>,
    /// The modes of the proxy; iptables and nftables if left out
    #[arg(long, value_name = "MODE", num_args = 1.., value_parser = matrix_modes())]
    pub(crate) mode: Vec<String>,
    /// The family of addresses; that of the first Service's first address if left out
    #[arg(long, value_enum, value_name = "4|6")]
    pub(crate) family: Option<RulesFamily>,
    /// The version of Kubernetes: `1.30`, whose output rules are tested against, to `current`
    #[arg(long, value_name = "VERSION", default_value = "1.30")]
    pub(crate) profile: String,
    /// The address of the client outside, as for `loadBalancerSourceRanges`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) external: Option<std::net::IpAddr>,
    /// How to print it
    #[arg(long, short = 'o', value_enum, default_value_t = MatrixForm::Text)]
    pub(crate) output: MatrixForm,
    /// Writes it as CSV, SVG and PNG to a folder instead
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// How `matrix` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MatrixForm {
    /// For people
    Text,
    /// A row for each end of each cell
    Csv,
    /// For programs; with the hosts that were assumed
    Json,
    /// A drawing of one service port
    Svg,
}

/// Returns the modes that the matrix knows.
fn matrix_modes() -> clap::builder::PossibleValuesParser {
    Mode::ALL.map(Mode::name).into()
}

/// `rulelag prove`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 the model agrees with the kernel; 1 it does not, and the cases \
                  are in --out;\n2 root or a program is missing, or the case file is wrong; 3 \
                  interrupted."
)]
pub(crate) struct Prove {
    /// How many cases
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) cases: u64,
    /// The number of the first case
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) first: u64,
    /// The seed of the cases: the same seed gives the same rules and packets
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Where cases on which the arms differ are written
    #[arg(long, value_name = "DIR", default_value = "prove")]
    pub(crate) out: PathBuf,
    /// Runs the case of a file again, and nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) case: Option<PathBuf>,
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
