//! The part of `ip route` and `ip address` that changes a host.

use std::net::IpAddr;

use super::config::{HostConfig, RouteEntry, RouteKind, Scope};
use crate::device::DeviceId;
use crate::host::{Host, Route, RouteQuery};
use crate::prefix::Prefix;

/// A command that `ip` would refuse, or that is not modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpError {
    /// A word that is not understood.
    #[error("{0:?} is not understood")]
    Word(String),
    /// The command ends too early.
    #[error("the command ends too early")]
    End,
    /// A device that is not there.
    #[error("there is no device {0:?}")]
    Device(String),
    /// A gateway that no route leads to.
    #[error("gateway {0} is not on a link of this host")]
    Gateway(IpAddr),
    /// The route is there already, or is not there.
    #[error("no such route, or one too many")]
    Route,
}

impl HostConfig {
    /// The first device after the loopback device.
    pub const ETH0: DeviceId = DeviceId(1);

    /// Does what `ip` with these words does: `route add|del|replace …`, `addr add|del …`.
    ///
    /// # Errors
    ///
    /// If `ip` would refuse it, or it is not modelled.
    pub fn ip(&mut self, words: &[&str]) -> Result<(), IpError> {
        let mut words = words.iter().copied().filter(|word| !word.is_empty() && *word != "-6");
        let object = words.next().ok_or(IpError::End)?;
        let verb = words.next().ok_or(IpError::End)?;
        match object {
            "route" | "ro" | "r" => self.ip_route(verb, &mut words),
            "address" | "addr" | "a" => self.ip_address(verb, &mut words),
            other => Err(IpError::Word(other.to_owned())),
        }
    }

    fn ip_address<'w>(
        &mut self,
        verb: &str,
        words: &mut impl Iterator<Item = &'w str>,
    ) -> Result<(), IpError> {
        let prefix = words.next().ok_or(IpError::End)?;
        let (addr, len) = parse_prefix(prefix)?;
        let mut dev = None;
        while let Some(word) = words.next() {
            match word {
                "dev" => dev = Some(self.dev(words.next())?),
                "scope" => _ = words.next(),
                "nodad" | "noprefixroute" => {}
                other => return Err(IpError::Word(other.to_owned())),
            }
        }
        let dev = dev.ok_or(IpError::End)?;
        match verb {
            "add" | "a" | "replace" => self.add_address(dev, addr, len),
            "del" | "delete" | "d" => self.remove_address(dev, addr),
            other => return Err(IpError::Word(other.to_owned())),
        }
        Ok(())
    }

    fn ip_route<'w>(
        &mut self,
        verb: &str,
        words: &mut impl Iterator<Item = &'w str>,
    ) -> Result<(), IpError> {
        let mut word = words.next().ok_or(IpError::End)?;
        let mut kind = None;
        match word {
            "unreachable" => kind = Some(RouteKind::Unreachable),
            "blackhole" => kind = Some(RouteKind::Blackhole),
            "prohibit" => kind = Some(RouteKind::Prohibit),
            "throw" => kind = Some(RouteKind::Throw),
            "local" => kind = Some(RouteKind::Local { dev: HostConfig::LO }),
            _ => {}
        }
        if kind.is_some() || word == "unicast" {
            word = words.next().ok_or(IpError::End)?;
        }
        let to = word;
        let (mut gateway, mut dev, mut source, mut metric, mut scope) = (None, None, None, 0, None);
        let mut onlink = false;
        while let Some(word) = words.next() {
            match word {
                "via" => {
                    let next = words.next().ok_or(IpError::End)?;
                    gateway = Some(parse_address(if next == "inet6" || next == "inet" {
                        words.next().ok_or(IpError::End)?
                    } else {
                        next
                    })?);
                }
                "dev" => dev = Some(self.dev(words.next())?),
                "src" => source = Some(parse_address(words.next().ok_or(IpError::End)?)?),
                "metric" | "preference" => {
                    let word = words.next().ok_or(IpError::End)?;
                    metric = word.parse().map_err(|_| IpError::Word(word.to_owned()))?;
                }
                "scope" => {
                    scope = Some(match words.next().ok_or(IpError::End)? {
                        "link" => Scope::Link,
                        "host" => Scope::Host,
                        _ => Scope::Global,
                    });
                }
                "proto" | "mtu" | "advmss" => _ = words.next(),
                "onlink" => onlink = true,
                other => return Err(IpError::Word(other.to_owned())),
            }
        }
        let v6 = gateway.or(source).is_some_and(|addr| addr.is_ipv6());
        let (addr, len) = match to {
            "default" if v6 => ([0u16; 8].into(), 0),
            "default" => ([0u8; 4].into(), 0),
            to => parse_prefix(to)?,
        };
        let prefix = Prefix::new(addr, len);
        if matches!(verb, "del" | "delete" | "d") {
            let removed = self.remove_routes(|route| route.prefix == prefix);
            return if removed == 0 { Err(IpError::Route) } else { Ok(()) };
        }
        let kind = match kind {
            Some(RouteKind::Local { .. }) => {
                RouteKind::Local { dev: dev.unwrap_or(HostConfig::LO) }
            }
            Some(kind) => kind,
            None => {
                let dev = match (dev, gateway) {
                    (Some(dev), _) if onlink || gateway.is_none() => dev,
                    (dev, Some(gateway)) => self.dev_toward(gateway, dev)?,
                    (dev, None) => dev.ok_or(IpError::End)?,
                };
                RouteKind::Unicast { dev, gateway }
            }
        };
        let near = matches!(kind, RouteKind::Unicast { gateway: None, .. });
        let scope = scope.unwrap_or(if near { Scope::Link } else { Scope::Global });
        match verb {
            "add" | "a" => {
                let same = |route: &RouteEntry| route.prefix == prefix && route.metric == metric;
                if self.routes().iter().any(same) {
                    return Err(IpError::Route);
                }
            }
            "replace" | "change" => {
                self.remove_routes(|route| route.prefix == prefix && route.metric == metric);
            }
            "append" => {}
            other => return Err(IpError::Word(other.to_owned())),
        }
        self.add_route(RouteEntry { prefix, kind, source, metric, scope });
        Ok(())
    }

    /// Returns the device by which a gateway is reached.
    // Kernel: fib_semantics.c, fib_check_nh
    fn dev_toward(&self, gateway: IpAddr, dev: Option<DeviceId>) -> Result<DeviceId, IpError> {
        let src = if gateway.is_ipv4() { [0; 4].into() } else { IpAddr::from([0u16; 8]) };
        let query = RouteQuery { dst: gateway, src, mark: 0, in_dev: None };
        match self.route(query) {
            Route::Forward { dev: out, .. } if dev.is_none_or(|dev| dev == out) => Ok(out),
            _ => Err(IpError::Gateway(gateway)),
        }
    }

    fn dev(&self, name: Option<&str>) -> Result<DeviceId, IpError> {
        let name = name.ok_or(IpError::End)?;
        self.device_named(name).ok_or_else(|| IpError::Device(name.to_owned()))
    }
}

fn parse_address(word: &str) -> Result<IpAddr, IpError> {
    word.parse().map_err(|_| IpError::Word(word.to_owned()))
}

fn parse_prefix(word: &str) -> Result<(IpAddr, u8), IpError> {
    let (address, len) = match word.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (word, None),
    };
    let addr = parse_address(address)?;
    let whole = if addr.is_ipv4() { 32 } else { 128 };
    let len = match len {
        None => whole,
        Some(len) => len
            .parse()
            .ok()
            .filter(|len| *len <= whole)
            .ok_or_else(|| IpError::Word(word.to_owned()))?,
    };
    Ok((addr, len))
}
