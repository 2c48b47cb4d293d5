//! Which Kubernetes version a proxy behaves as.

use std::fmt;

/// A minor version of Kubernetes 1, where kube-proxy's behaviour depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Profile(u16);

impl Profile {
    /// Kubernetes 1.30: the version whose output these generators are compared with.
    pub const V1_30: Profile = Profile(30);
    /// The newest version whose behaviour is known here.
    pub const CURRENT: Profile = Profile(36);

    /// Reads `1.30`, `v1.30` or `current`; versions before 1.28 behaved differently in more than
    /// is known here.
    pub fn parse(text: &str) -> Option<Profile> {
        if text == "current" {
            return Some(Profile::CURRENT);
        }
        let minor = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.")?;
        Profile::from_minor(minor.parse().ok()?)
    }

    /// Returns the profile of a minor version, if its behaviour is known here.
    pub fn from_minor(minor: u16) -> Option<Profile> {
        (28..=Profile::CURRENT.0).contains(&minor).then_some(Profile(minor))
    }

    /// Returns the minor version.
    pub fn minor(self) -> u16 {
        self.0
    }

    /// Returns whether hints count only if the Service is annotated with
    /// `service.kubernetes.io/topology-mode`. Since the gate ServiceTrafficDistribution is on by
    /// default, they always count.
    pub fn hints_need_annotation(self) -> bool {
        self.0 < 31
    }

    /// Returns whether hints for nodes count (gate PreferSameTrafficDistribution, KEP-3015).
    pub fn has_node_hints(self) -> bool {
        self.0 >= 34
    }

    /// Returns whether of two endpoints with one address the one that is not terminating counts;
    /// before, a local one did.
    pub fn prefers_live_duplicate(self) -> bool {
        self.0 >= 33
    }

    /// Returns whether nftables mode rewrites where it chooses, without a chain for each endpoint,
    /// and filters behind the translation.
    pub fn squashes_nftables(self) -> bool {
        self.0 >= 36
    }

    /// Returns whether nftables mode knows devices by name. By index, which is what 1.30 asks for,
    /// nft refuses rules for a device that is not there, and all that begin alike. Which release
    /// changed it is not known here: taken for that of the form of 1.36.
    pub fn matches_device_names(self) -> bool {
        self.0 >= 36
    }
}

impl Default for Profile {
    fn default() -> Profile {
        Profile::V1_30
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}
