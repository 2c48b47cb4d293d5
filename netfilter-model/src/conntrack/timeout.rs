//! How long entries live: the kernel's defaults under their sysctl names.

use std::time::Duration;

/// Timeouts and limits of connection tracking.
///
/// Field names are those of `net.netfilter.nf_conntrack_*`; each defaults to the kernel's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctls {
    /// `nf_conntrack_max`: entries, confirmed or not.
    pub max: u32,
    /// `nf_conntrack_buckets`: the length of the hash table, which decides who is dropped early.
    pub buckets: u32,
    /// `nf_conntrack_checksum`: received packets with a wrong checksum are INVALID.
    pub checksum: bool,
    /// `nf_conntrack_tcp_loose`: connections may be picked up in their middle.
    pub tcp_loose: bool,
    /// `nf_conntrack_tcp_be_liberal`: segments out of the window are not INVALID.
    pub tcp_be_liberal: bool,
    /// `nf_conntrack_tcp_ignore_invalid_rst`: resets from before the window are not INVALID.
    pub tcp_ignore_invalid_rst: bool,
    /// `nf_conntrack_tcp_max_retrans`: after so many equal acknowledgements the shorter timeout
    /// holds.
    pub tcp_max_retrans: u8,
    /// `nf_conntrack_tcp_timeout_syn_sent`, also of simultaneous open.
    pub tcp_timeout_syn_sent: Duration,
    /// `nf_conntrack_tcp_timeout_syn_recv`.
    pub tcp_timeout_syn_recv: Duration,
    /// `nf_conntrack_tcp_timeout_established`.
    pub tcp_timeout_established: Duration,
    /// `nf_conntrack_tcp_timeout_fin_wait`.
    pub tcp_timeout_fin_wait: Duration,
    /// `nf_conntrack_tcp_timeout_close_wait`.
    pub tcp_timeout_close_wait: Duration,
    /// `nf_conntrack_tcp_timeout_last_ack`.
    pub tcp_timeout_last_ack: Duration,
    /// `nf_conntrack_tcp_timeout_time_wait`.
    pub tcp_timeout_time_wait: Duration,
    /// `nf_conntrack_tcp_timeout_close`.
    pub tcp_timeout_close: Duration,
    /// `nf_conntrack_tcp_timeout_max_retrans`.
    pub tcp_timeout_max_retrans: Duration,
    /// `nf_conntrack_tcp_timeout_unacknowledged`: while an end waits for an acknowledgement, and
    /// for connections picked up in their middle and not answered yet.
    pub tcp_timeout_unacknowledged: Duration,
    /// `nf_conntrack_udp_timeout`.
    pub udp_timeout: Duration,
    /// `nf_conntrack_udp_timeout_stream`.
    pub udp_timeout_stream: Duration,
    /// `nf_conntrack_icmp_timeout`.
    pub icmp_timeout: Duration,
    /// `nf_conntrack_icmpv6_timeout`.
    pub icmpv6_timeout: Duration,
    /// `nf_conntrack_gre_timeout`.
    pub gre_timeout: Duration,
    /// `nf_conntrack_gre_timeout_stream`.
    pub gre_timeout_stream: Duration,
    /// `nf_conntrack_sctp_timeout_cookie_wait`: until an association is answered.
    pub sctp_timeout_cookie_wait: Duration,
    /// `nf_conntrack_sctp_timeout_established`.
    pub sctp_timeout_established: Duration,
    /// `nf_conntrack_generic_timeout`.
    pub generic_timeout: Duration,
}

impl Default for Sysctls {
    fn default() -> Sysctls {
        Sysctls {
            // Kernel: nf_conntrack_core.c, nf_conntrack_init_start, on 4 GiB and more.
            max: 262_144,
            buckets: 262_144,
            checksum: true,
            tcp_loose: true,
            tcp_be_liberal: false,
            tcp_ignore_invalid_rst: false,
            tcp_max_retrans: 3,
            tcp_timeout_syn_sent: Duration::from_secs(120),
            tcp_timeout_syn_recv: Duration::from_secs(60),
            tcp_timeout_established: Duration::from_secs(432_000),
            tcp_timeout_fin_wait: Duration::from_secs(120),
            tcp_timeout_close_wait: Duration::from_secs(60),
            tcp_timeout_last_ack: Duration::from_secs(30),
            tcp_timeout_time_wait: Duration::from_secs(120),
            tcp_timeout_close: Duration::from_secs(10),
            tcp_timeout_max_retrans: Duration::from_secs(300),
            tcp_timeout_unacknowledged: Duration::from_secs(300),
            udp_timeout: Duration::from_secs(30),
            udp_timeout_stream: Duration::from_secs(120),
            icmp_timeout: Duration::from_secs(30),
            icmpv6_timeout: Duration::from_secs(30),
            gre_timeout: Duration::from_secs(30),
            gre_timeout_stream: Duration::from_secs(180),
            sctp_timeout_cookie_wait: Duration::from_secs(3),
            sctp_timeout_established: Duration::from_secs(210),
            generic_timeout: Duration::from_secs(600),
        }
    }
}
