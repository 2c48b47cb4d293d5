//! The fields of a scenario file, with types, defaults and their documentation.
//!
//! The reader ([`super::raw`]), the JSON Schema ([`super::schema`]) and the defaults are all made
//! from these tables, so they cannot disagree.

use super::raw::Absent::{self, Default, Optional, Required};
use super::raw::{Field, Kind, Table};

const fn field(name: &'static str, kind: Kind, absent: Absent, doc: &'static str) -> Field {
    Field { name, kind, absent, doc }
}
/// A scenario file.
pub(crate) static SCENARIO: Table = Table {
    name: "scenario",
    fields: &[
        field("apiVersion", Kind::Word(&["rulelag/v1"]), Required, "The version of this format."),
        field("name", Kind::Text, Optional, "The scenario's name; the file's name if left out."),
        field(
            "question",
            Kind::Text,
            Optional,
            "What the scenario is to answer; leads the summary.",
        ),
        field("cluster", Kind::Table(&CLUSTER), Default("{}"), "Nodes and address ranges."),
        field("proxy", Kind::Table(&PROXY), Default("{}"), "The Service proxy on every node."),
        field(
            "propagation",
            Kind::Table(&PROPAGATION),
            Default("{ delay: { lognormal: { median: 300ms, p99: 2s } } }"),
            "How rule changes reach the nodes: by a drawn delay, or through a pipeline.",
        ),
        field("kubelet", Kind::Table(&KUBELET), Default("{}"), "The kubelets' timings."),
        field(
            "objects",
            Kind::List(&Kind::Any("a Kubernetes object, or the name of a file of them")),
            Default("[]"),
            "Kubernetes objects, as applied: inline, or names of files relative to this one.",
        ),
        field(
            "applications",
            Kind::List(&Kind::Table(&APPLICATION)),
            Default("[]"),
            "What manifests cannot say about the programs in the Pods; Deployments not listed have every default.",
        ),
        field("clients", Kind::List(&Kind::Table(&CLIENT)), Default("[]"), "Groups of clients."),
        field(
            "events",
            Kind::List(&Kind::Table(&EVENT)),
            Default("[]"),
            "What users do to the cluster, and when.",
        ),
        field(
            "expect",
            Kind::List(&Kind::Expectation),
            Default("[]"),
            "What must hold of a run's totals.",
        ),
        field("sweep", Kind::Table(&SWEEP), Optional, "The grid that `rulelag sweep` runs."),
        field(
            "duration",
            Kind::Duration,
            Optional,
            "Cuts the run at this time; without it a run ends when everything in it has ended.",
        ),
        field("limits", Kind::Table(&LIMITS), Default("{}"), "Bounds on a run that would not end."),
        field("timelineBin", Kind::Duration, Default("100ms"), "Width of a bin of timeline.csv."),
    ],
    one_of: &[],
};

static CLUSTER: Table = Table {
    name: "cluster",
    fields: &[
        field(
            "nodes",
            Kind::Int(1, 1_000_000),
            Default("10"),
            "How many nodes; they are named node-0, node-1, ….",
        ),
        field(
            "podCIDR",
            Kind::Cidr,
            Default("10.244.0.0/16"),
            "All Pods' addresses (kube-controller-manager's --cluster-cidr).",
        ),
        field(
            "nodeCIDRMaskSize",
            Kind::Int(8, 30),
            Default("24"),
            "Prefix length of one node's part of podCIDR (kube-controller-manager's --node-cidr-mask-size).",
        ),
        field(
            "serviceCIDR",
            Kind::Cidr,
            Default("10.96.0.0/12"),
            "ClusterIPs (--service-cluster-ip-range).",
        ),
        field("nodeCIDR", Kind::Cidr, Default("192.168.0.0/16"), "The nodes' own addresses."),
        field(
            "network",
            Kind::Word(&["flannel-host-gw"]),
            Default("flannel-host-gw"),
            "The Pod network.",
        ),
        field(
            "linkLatency",
            Kind::Duration,
            Default("50us"),
            "One-way latency between a node and the fabric, node stack included; two Pods on different nodes are two of these apart.",
        ),
        field(
            "bridgeLatency",
            Kind::Duration,
            Default("10us"),
            "One-way latency between two Pods of one node.",
        ),
        field(
            "maxPods",
            Kind::Int(1, 1_000_000),
            Default("110"),
            "Most Pods that fit a node (kubelet's maxPods).",
        ),
        field(
            "nodeLabels",
            Kind::Map("node name", &Kind::Map("label", &Kind::Text)),
            Default("{}"),
            "Labels of nodes.",
        ),
    ],
    one_of: &[],
};

static PROXY: Table = Table {
    name: "proxy",
    fields: &[
        field(
            "mode",
            Kind::Word(&[
                "iptables",
                "nftables",
                "ipvs",
                "userspace",
                "ebpf",
                "central",
                "article",
            ]),
            Default("iptables"),
            "What makes Services' addresses work on every node.",
        ),
        field(
            "scheduler",
            Kind::Word(&["rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "mh"]),
            Optional,
            "With mode ipvs: how endpoints are chosen; `rr`, in turn, if it is not said.",
        ),
        field(
            "selection",
            Kind::Word(&["random", "maglev"]),
            Optional,
            "With mode ebpf: endpoints for sockets, at random, or for packets, by their hash.",
        ),
        field(
            "profile",
            Kind::Word(&[
                "v1.28", "v1.29", "v1.30", "v1.31", "v1.32", "v1.33", "v1.34", "v1.35", "v1.36",
            ]),
            Default("v1.30"),
            "The version of Kubernetes, where proxies' behaviour changed.",
        ),
        field(
            "masqueradeBit",
            Kind::Int(0, 31),
            Default("14"),
            "The bit of the mark that asks for masquerading.",
        ),
        field(
            "masqueradeAll",
            Kind::Bool,
            Default("false"),
            "Masquerade all traffic to ClusterIPs.",
        ),
        field(
            "minSyncPeriod",
            Kind::Duration,
            Optional,
            "Least time between two syncs, as KubeProxyConfiguration counts it: 0 stands for the mode's default, 1s in iptables and nftables mode. With propagation.pipeline only.",
        ),
        field(
            "syncPeriod",
            Kind::Duration,
            Optional,
            "From a failed sync to the next, and from one look for flushed rules to the next (30s). With propagation.pipeline only.",
        ),
        field(
            "iptablesBackend",
            Kind::Word(&["legacy", "nft"]),
            Optional,
            "Which iptables the nodes have (nft). With propagation.pipeline only, in iptables mode.",
        ),
        field(
            "clock",
            Kind::Word(&["continuous", "logical"]),
            Default("continuous"),
            "With mode article: logical lets changes arrive at whole seconds only.",
        ),
        field(
            "loadBalancer",
            Kind::Table(&LOAD_BALANCER),
            Optional,
            "With mode central: the machine that all packets to Services pass.",
        ),
    ],
    one_of: &[],
};

static LOAD_BALANCER: Table = Table {
    name: "load balancer",
    fields: &[
        field(
            "capacity",
            Kind::Rate,
            Optional,
            "Packets that it works on, at most; any number if it is not said.",
        ),
        field(
            "queue",
            Kind::Int(0, 1_000_000_000),
            Default("1000"),
            "Packets that may wait; more are lost.",
        ),
    ],
    one_of: &[],
};

static PROPAGATION: Table = Table {
    name: "propagation",
    fields: &[field(
        "nodes",
        Kind::Map("node name", &Kind::Table(&LAW)),
        Default("{}"),
        "Nodes whose delay, or whose watch in a pipeline, follows another law.",
    )],
    one_of: &[
        field(
            "delay",
            Kind::Table(&LAW),
            Optional,
            "The whole time from the EndpointSlice's commit to live rules, drawn for each node and change.",
        ),
        field(
            "pipeline",
            Kind::Table(&PIPELINE),
            Optional,
            "The stages that the time comes from: the watch, and the proxies' syncs.",
        ),
    ],
};

static PIPELINE: Table = Table {
    name: "pipeline",
    fields: &[
        field(
            "watch",
            Kind::Table(&LAW),
            Default("{ lognormal: { median: 5ms, p99: 100ms } }"),
            "From the EndpointSlice's commit until a node's proxy is told.",
        ),
        field(
            "syncCost",
            Kind::Table(&SYNC_COST),
            Default("{}"),
            "What a sync costs, where it is not what was measured for the mode and iptables back end.",
        ),
        field(
            "syncFailure",
            Kind::Number(0.0, 1.0),
            Default("0"),
            "The probability that the kernel refuses what a sync writes.",
        ),
        field(
            "lock",
            Kind::Table(&LOCK),
            Optional,
            "Another program that takes the xtables lock on every node; with iptablesBackend legacy.",
        ),
        field(
            "otherServices",
            Kind::Table(&OTHER_SERVICES),
            Default("{}"),
            "Services beside the scenario's, whose rules proxies hold and walk.",
        ),
    ],
    one_of: &[],
};

static OTHER_SERVICES: Table = Table {
    name: "other services",
    fields: &[
        field(
            "count",
            Kind::Int(0, 1_000_000),
            Default("0"),
            "How many, each with one port; nobody calls them, and they do not change.",
        ),
        field("endpoints", Kind::Int(0, 10_000), Default("10"), "How many endpoints each has."),
    ],
    one_of: &[],
};

static SYNC_COST: Table = Table {
    name: "sync cost",
    fields: &[
        field("base", Kind::Duration, Optional, "Of any sync."),
        field("ensure", Kind::Duration, Optional, "Of a full sync: chains and jumps looked for."),
        field("perService", Kind::Duration, Optional, "Of each service port, changed or not."),
        field("perRuleMade", Kind::Duration, Optional, "Of making a rule that is written."),
        field("perRuleWritten", Kind::Duration, Optional, "Of loading a rule."),
        field("perRuleHeld", Kind::Duration, Optional, "Of a rule in the table, written or not."),
        field(
            "perRuleListed",
            Kind::Duration,
            Optional,
            "Of a rule in the kernel's listing, where stale chains are looked for.",
        ),
        field(
            "doublingRules",
            Kind::Int(1, i64::MAX),
            Optional,
            "From how many rules on a load costs twice as much for each.",
        ),
        field(
            "scale",
            Kind::Number(0.0, 1e6),
            Default("1"),
            "Multiplies everything; 0 turns the cost of syncs off.",
        ),
    ],
    one_of: &[],
};

static LOCK: Table = Table {
    name: "lock",
    fields: &[
        field("every", Kind::Duration, Required, "From one take to the next."),
        field("holds", Kind::Duration, Required, "How long it is held."),
    ],
    one_of: &[],
};

static KUBELET: Table = Table {
    name: "kubelet",
    fields: &[
        field(
            "notice",
            Kind::Table(&LAW),
            Default("{ lognormal: { median: 100ms, p99: 1s } }"),
            "From an accepted deletion to the kubelet acting on it.",
        ),
        field(
            "start",
            Kind::Table(&LAW),
            Default("{ lognormal: { median: 2s, p99: 8s } }"),
            "From a Pod's creation to its container running: scheduling, pulling, starting.",
        ),
        field(
            "teardown",
            Kind::Table(&LAW),
            Default("{ uniform: { min: 100ms, max: 2s } }"),
            "From the last container's exit to the release of the Pod's address.",
        ),
    ],
    one_of: &[],
};

/// A distribution of durations.
pub(crate) static LAW: Table = Table { name: "law", fields: &[], one_of: LAWS };

static LAWS: &[Field] = &[
    field("constant", Kind::Duration, Optional, "Always the same."),
    field("uniform", Kind::Table(&UNIFORM), Optional, "Uniform on [min, max]."),
    field("exponential", Kind::Table(&EXPONENTIAL), Optional, "Exponential."),
    field(
        "lognormal",
        Kind::Table(&LOGNORMAL),
        Optional,
        "Lognormal, by median and p99 or by mean and sd.",
    ),
    field("gamma", Kind::Table(&GAMMA), Optional, "Gamma, by shape and mean or by mean and sd."),
    field("weibull", Kind::Table(&WEIBULL), Optional, "Weibull: F(t) = 1 − exp(−(t/scale)^shape)."),
    field("pareto", Kind::Table(&PARETO), Optional, "Pareto: F(t) = 1 − (min/t)^shape."),
    field("histogram", Kind::Table(&HISTOGRAM), Optional, "A histogram, uniform within a bin."),
    field(
        "empirical",
        Kind::List(&Kind::Duration),
        Optional,
        "Each of these observations with equal probability.",
    ),
    field("mixture", Kind::List(&Kind::Table(&COMPONENT)), Optional, "One of several laws."),
];

static UNIFORM: Table = Table {
    name: "uniform law",
    fields: &[
        field("min", Kind::Duration, Required, "Least."),
        field("max", Kind::Duration, Required, "Greatest."),
    ],
    one_of: &[],
};
static EXPONENTIAL: Table = Table {
    name: "exponential law",
    fields: &[field("mean", Kind::Duration, Required, "Mean.")],
    one_of: &[],
};
static LOGNORMAL: Table = Table {
    name: "lognormal law",
    fields: &[
        field("median", Kind::Duration, Optional, "Median, with p99."),
        field("p99", Kind::Duration, Optional, "99th percentile, with median."),
        field("mean", Kind::Duration, Optional, "Mean, with sd."),
        field("sd", Kind::Duration, Optional, "Standard deviation, with mean."),
    ],
    one_of: &[],
};
static GAMMA: Table = Table {
    name: "gamma law",
    fields: &[
        field("shape", Kind::Number(1e-3, 1e6), Optional, "Shape, with mean."),
        field("mean", Kind::Duration, Required, "Mean."),
        field("sd", Kind::Duration, Optional, "Standard deviation, with mean."),
    ],
    one_of: &[],
};
static WEIBULL: Table = Table {
    name: "Weibull law",
    fields: &[
        field("shape", Kind::Number(1e-2, 1e3), Required, "Shape."),
        field("scale", Kind::Duration, Required, "Scale: the 63rd percentile."),
    ],
    one_of: &[],
};
static PARETO: Table = Table {
    name: "Pareto law",
    fields: &[
        field("min", Kind::Duration, Required, "Least."),
        field(
            "shape",
            Kind::Number(1e-2, 1e3),
            Required,
            "Tail index; the mean is finite above 1 only.",
        ),
    ],
    one_of: &[],
};
static HISTOGRAM: Table = Table {
    name: "histogram law",
    fields: &[
        field(
            "edges",
            Kind::List(&Kind::Duration),
            Required,
            "Edges of the bins, rising; one more than weights.",
        ),
        field("weights", Kind::List(&Kind::Number(0.0, 1e15)), Required, "Weight of each bin."),
    ],
    one_of: &[],
};
static COMPONENT: Table = Table {
    name: "component of a mixture",
    fields: &[field(
        "weight",
        Kind::Number(0.0, 1e15),
        Required,
        "Weight; weights need not sum to one.",
    )],
    one_of: LAWS,
};

/// What a manifest cannot say about the program in the Pods.
pub(crate) static APPLICATION: Table = Table {
    name: "application",
    fields: &[
        field("deployment", Kind::Text, Required, "The Deployment, as namespace/name."),
        field(
            "onSigterm",
            Kind::Word(&["close", "drain", "ignore"]),
            Default("close"),
            "close: exits at once, in-flight connections are reset; drain: stops listening, finishes, exits; ignore: serves until SIGKILL.",
        ),
        field(
            "startup",
            Kind::Table(&LAW),
            Default("{ constant: 0s }"),
            "From container start to listening.",
        ),
        field(
            "serviceTime",
            Kind::Table(&LAW),
            Default("{ constant: 1ms }"),
            "From a request's arrival to its response.",
        ),
    ],
    one_of: &[],
};

static CLIENT: Table = Table {
    name: "client",
    fields: &[
        field("name", Kind::Text, Required, "The group's name."),
        field(
            "from",
            Kind::Word(&["pods"]),
            Default("pods"),
            "Where it runs: in a Pod on every node.",
        ),
        field("service", Kind::Text, Required, "The Service, as namespace/name."),
        field(
            "port",
            Kind::Port,
            Optional,
            "The Service's port, by number or name; not needed if it has one only.",
        ),
        field("rate", Kind::Rate, Required, "Requests per second of the whole group."),
        field(
            "arrivals",
            Kind::Word(&["poisson", "constant"]),
            Default("poisson"),
            "How requests are spaced.",
        ),
        field(
            "timeout",
            Kind::Duration,
            Default("1s"),
            "How long an attempt may take, from its first SYN to the response.",
        ),
        field(
            "retries",
            Kind::Int(0, 100),
            Default("0"),
            "How many more attempts, each on a new connection, a failed request gets.",
        ),
        field("retryBackoff", Kind::Duration, Default("100ms"), "Pause before a retry."),
        field(
            "detail",
            Kind::Word(&["packet"]),
            Default("packet"),
            "packet: every packet is sent.",
        ),
    ],
    one_of: &[],
};

static EVENT: Table = Table {
    name: "event",
    fields: &[
        field("at", Kind::Duration, Required, "When."),
        field(
            "count",
            Kind::Int(1, 1_000_000),
            Optional,
            "With deletePod: how many Pods at once (1).",
        ),
        field("replicas", Kind::Int(0, 1_000_000), Optional, "With scale: the new size."),
        field("for", Kind::Duration, Optional, "With fail: for how long (to the end)."),
        field(
            "takes",
            Kind::Duration,
            Optional,
            "With restartProxy: until it has listed Services and EndpointSlices (3s).",
        ),
    ],
    one_of: &[
        field(
            "rollout",
            Kind::Text,
            Optional,
            "Replaces all Pods of this Deployment (kubectl rollout restart).",
        ),
        field(
            "deletePod",
            Kind::Text,
            Optional,
            "Deletes Pods of this Deployment (kubectl delete pod).",
        ),
        field(
            "scale",
            Kind::Text,
            Optional,
            "Changes the size of this Deployment (kubectl scale).",
        ),
        field(
            "fail",
            Kind::Text,
            Optional,
            "Cuts a machine off: `node-3`, or `load-balancer` in proxy mode central.",
        ),
        field(
            "restartProxy",
            Kind::Text,
            Optional,
            "Restarts the proxy of this node; its rules stay. With propagation.pipeline only.",
        ),
        field(
            "flushRules",
            Kind::Text,
            Optional,
            "Another program removes the Services' rules of this node. With propagation.pipeline only.",
        ),
    ],
};

/// An expectation with more than its expression.
pub(crate) static EXPECTATION: Table = Table {
    name: "expectation",
    fields: &[
        field(
            "expr",
            Kind::Text,
            Required,
            "The expression: `lost == 0`, `lost_fraction <= 0.1%`, `lost{cause=\"refused\"} == 0`, `stale_max_s < 5`.",
        ),
        field(
            "over",
            Kind::Word(&["run", "sweep"]),
            Default("run"),
            "run: judged by `rulelag run`; sweep: judged by `rulelag sweep` too, in every one of its runs.",
        ),
    ],
    one_of: &[],
};

static SWEEP: Table = Table {
    name: "sweep",
    fields: &[
        field(
            "grid",
            Kind::Map("path into the scenario", &Kind::List(&Kind::Any("a value of that path"))),
            Required,
            "The values of each parameter; every combination is a point.",
        ),
        field(
            "replications",
            Kind::Int(1, 1_000_000),
            Default("20"),
            "How often each point is run.",
        ),
    ],
    one_of: &[],
};

static LIMITS: Table = Table {
    name: "limits",
    fields: &[
        field("events", Kind::Int(1, i64::MAX), Default("20000000000"), "Most events in all."),
        field(
            "eventsAtOneInstant",
            Kind::Int(1, i64::MAX),
            Default("10000000"),
            "Most events at one instant.",
        ),
        field(
            "simulated",
            Kind::Duration,
            Default("24h"),
            "Longest simulated time, where duration is not given.",
        ),
    ],
    one_of: &[],
};
