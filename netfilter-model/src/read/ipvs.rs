//! What `ipvsadm -Ln` and `ipvsadm -S -n` print.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::{Line, Read, Remark, lines, pasted_command};
use crate::ipvs::{Destination, Forward, Ipvs, Persistence, Service, ServiceId};
use crate::tuple::Protocol;

/// Reads services as `ipvsadm -Ln` lists them, with `--stats`, `--rate` or `--thresholds` too, or
/// as `ipvsadm -S -n` saves them.
pub fn ipvsadm(text: &str) -> Read<Ipvs> {
    let mut reader = Reader::default();
    for line in lines(text) {
        if let Err(problem) = reader.line(line) {
            reader.remarks.push(line.remark(problem));
        }
    }
    Read { value: reader.ipvs, remarks: reader.remarks }
}

#[derive(Default)]
struct Reader {
    ipvs: Ipvs,
    remarks: Vec<Remark>,
    by_id: BTreeMap<ServiceId, usize>,
    /// The service whose destinations are being listed.
    current: Option<usize>,
    columns: Columns,
}

/// What stands behind a destination's address.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Columns {
    /// Forward, weight, active and inactive connections.
    #[default]
    State,
    /// Weight, connections of templates, active and inactive connections.
    Persistent,
    /// Upper and lower threshold, active and inactive connections.
    Thresholds,
    /// Counts and rates only.
    Traffic,
}

type Done = Result<(), String>;

impl Reader {
    fn line(&mut self, line: Line<'_>) -> Done {
        let text = line.text.trim();
        if text.is_empty() || text.starts_with('#') && pasted_command(text).is_none() {
            return Ok(());
        }
        if let Some(rest) = text.strip_prefix("IP Virtual Server version") {
            let size = rest.split_once("(size=").and_then(|(_, size)| size.split_once(')'));
            if let Some(size) = size.and_then(|(size, _)| size.parse().ok()) {
                self.ipvs.table_size = size;
            }
            return Ok(());
        }
        if text.starts_with("Prot LocalAddress:Port") {
            let has = |word| text.split_whitespace().any(|other| other == word);
            self.columns = if has("Conns") || has("CPS") { Columns::Traffic } else { self.columns };
            return Ok(());
        }
        if let Some(rest) = text.strip_prefix("->") {
            return self.arrow(rest.trim());
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        if matches!(words[0], "TCP" | "UDP" | "SCTP" | "FWM") {
            self.current = None;
            return self.listed_service(line, &words);
        }
        let prompt = pasted_command(text);
        let command = prompt.unwrap_or(text);
        let known = |word: &&str| matches!(word.rsplit('/').next(), Some("sudo" | "ipvsadm"));
        let options: Vec<&str> = command.split_whitespace().skip_while(known).collect();
        match options.first() {
            Some(&("-A" | "--add-service")) => self.saved_service(&options[1..]),
            Some(&("-a" | "--add-server")) => self.saved_destination(&options[1..]),
            _ if prompt.is_some()
                || command.split_whitespace().next().is_some_and(|w| known(&w)) =>
            {
                Err("a shell's prompt or command, not its output".to_owned())
            }
            _ => Err("no line that ipvsadm prints".to_owned()),
        }
    }

    fn arrow(&mut self, rest: &str) -> Done {
        let words: Vec<&str> = rest.split_whitespace().collect();
        let Some((to, values)) = words.split_first() else {
            return Err("a destination without its address".to_owned());
        };
        if *to == "RemoteAddress:Port" {
            let has = |word| values.contains(&word);
            self.columns = if has("Forward") {
                Columns::State
            } else if has("PersistConn") {
                Columns::Persistent
            } else if has("Uthreshold") {
                Columns::Thresholds
            } else {
                Columns::Traffic
            };
            return Ok(());
        }
        let Some(at) = self.current else {
            return Err("a destination of a service that was not read".to_owned());
        };
        let (address, port) = parse_endpoint(to).ok_or_else(|| not_an_endpoint(to))?;
        let mut destination = Destination::new(address, port);
        let result = read_columns(self.columns, values, &mut destination);
        self.ipvs.services[at].destinations.push(destination);
        result
    }

    fn listed_service(&mut self, line: Line<'_>, words: &[&str]) -> Done {
        let id = words.get(1).ok_or("a service without its address")?;
        let mut rest = &words[2..];
        let id = match words[0] {
            "FWM" => {
                let mark = id.parse().map_err(|_| format!("{id:?} is no mark"))?;
                let v6 = rest.first() == Some(&"IPv6");
                rest = &rest[usize::from(v6)..];
                ServiceId::Mark { mark, v6 }
            }
            protocol => {
                let protocol = match protocol {
                    "UDP" => Protocol::UDP,
                    "SCTP" => Protocol::SCTP,
                    _ => Protocol::TCP,
                };
                let (address, port) = parse_endpoint(id).ok_or_else(|| not_an_endpoint(id))?;
                ServiceId::Address(protocol, address, port)
            }
        };
        // Listings of traffic show counts in place of the scheduler.
        let counts = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
        let (scheduler, mut options) = match rest.split_first() {
            Some((scheduler, options)) if !counts(scheduler) => (*scheduler, options),
            _ => ("", &[][..]),
        };
        if !scheduler.is_empty() && !is_name(scheduler) {
            return Err(format!("{scheduler:?} is no scheduler"));
        }
        let mut service = Service::new(id, scheduler);
        let mut problem =
            scheduler.is_empty().then(|| "the line does not show the scheduler".to_owned());
        while let Some((option, behind)) = options.split_first() {
            let value = behind.first().copied().unwrap_or("");
            let mut taken = 1;
            match *option {
                "persistent" => {
                    let timeout = value.parse();
                    let timeout = timeout.map_err(|_| format!("{value:?} is no timeout"))?;
                    let len = if id_is_v6(&id) { 128 } else { 32 };
                    service.persistence = Some(Persistence { timeout, len });
                    taken = 2;
                }
                "mask" => {
                    match (parse_mask(value), &mut service.persistence) {
                        (Some(len), Some(persistence)) => persistence.len = len,
                        _ => problem = Some(format!("{value:?} is no mask")),
                    }
                    taken = 2;
                }
                "ops" => service.one_packet = true,
                "pe" => {
                    if is_name(value) {
                        service.engine = Some(value.into());
                    } else {
                        problem = Some(format!("{value:?} is no persistence engine"));
                    }
                    taken = 2;
                }
                flags if flags.starts_with('(') && flags.ends_with(')') => {
                    let flags = flags.trim_matches(['(', ')']);
                    match read_flags(flags) {
                        Some(flags) => service.flags = flags,
                        None => problem = Some(format!("{flags:?} are no flags")),
                    }
                }
                other => problem = Some(format!("unknown flag {other:?}")),
            }
            options = &options[taken.min(options.len())..];
        }
        self.push(service)?;
        if let Some(problem) = problem {
            self.remarks.push(line.remark(problem));
        }
        Ok(())
    }

    fn push(&mut self, service: Service) -> Done {
        let at = self.ipvs.services.len();
        if self.by_id.contains_key(&service.id) {
            return Err("a second service of this address".to_owned());
        }
        self.by_id.insert(service.id, at);
        self.ipvs.services.push(service);
        self.current = Some(at);
        Ok(())
    }

    fn saved_service(&mut self, options: &[&str]) -> Done {
        let mut options = Options::new(options);
        let id = options.service()?;
        let scheduler = options.value(&["-s", "--scheduler"]).unwrap_or("wlc");
        if !is_name(scheduler) {
            return Err(format!("{scheduler:?} is no scheduler"));
        }
        let mut service = Service::new(id, scheduler);
        if let Some(timeout) = options.optional(&["-p", "--persistent"]) {
            // Kernel: ip_vs.h, IP_VS_TEMPLATE_TIMEOUT
            let timeout = if timeout.is_empty() { "360" } else { timeout };
            let timeout = timeout.parse().map_err(|_| format!("{timeout:?} is no timeout"))?;
            let mask = options
                .value(&["-M", "--netmask"])
                .map(|mask| parse_mask(mask).ok_or_else(|| format!("{mask:?} is no mask")));
            let len = mask.transpose()?.unwrap_or(if id_is_v6(&id) { 128 } else { 32 });
            service.persistence = Some(Persistence { timeout, len });
        }
        service.one_packet = options.flag(&["-o", "--ops"]);
        if let Some(engine) = options.value(&["--pe"]) {
            let legal = is_name(engine).then(|| engine.into());
            service.engine = Some(legal.ok_or_else(|| format!("{engine:?} is no engine"))?);
        }
        if let Some(flags) = options.value(&["-b", "--sched-flags"]) {
            service.flags = read_flags(flags).ok_or_else(|| format!("{flags:?} are no flags"))?;
        }
        self.push(service)?;
        options.end()
    }

    fn saved_destination(&mut self, options: &[&str]) -> Done {
        let mut options = Options::new(options);
        let id = options.service()?;
        let at = *self.by_id.get(&id).ok_or("a destination of a service that was not read")?;
        let to = options.value(&["-r", "--real-server"]).ok_or("no -r")?;
        let (address, port) = match (parse_endpoint(to), to.parse(), id) {
            (Some(endpoint), _, _) => endpoint,
            (None, Ok(address), ServiceId::Address(_, _, port)) => (address, port),
            (None, Ok(address), ServiceId::Mark { .. }) => (address, 0),
            _ => return Err(not_an_endpoint(to)),
        };
        let mut destination = Destination::new(address, port);
        destination.forward = if options.flag(&["-m", "--masquerading"]) {
            Forward::Masq
        } else if options.flag(&["-i", "--ipip"]) {
            Forward::Tunnel
        } else {
            // The default of ipvsadm.
            options.flag(&["-g", "--gatewaying"]);
            Forward::Route
        };
        let fields = [
            (&["-w", "--weight"], &mut destination.weight),
            (&["-x", "--u-threshold"], &mut destination.upper),
            (&["-y", "--l-threshold"], &mut destination.lower),
        ];
        for (names, field) in fields {
            if let Some(value) = options.value(names) {
                *field = value.parse().map_err(|_| format!("{value:?} is no number"))?;
            }
        }
        self.ipvs.services[at].destinations.push(destination);
        options.end()
    }
}

/// Returns whether a word may be the name of a scheduler, a flag or an engine.
fn is_name(word: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.chars().all(legal)
}

fn read_flags(text: &str) -> Option<Vec<Arc<str>>> {
    text.split(',').map(|flag| is_name(flag).then(|| flag.into())).collect()
}

fn id_is_v6(id: &ServiceId) -> bool {
    match id {
        ServiceId::Address(_, address, _) => address.is_ipv6(),
        ServiceId::Mark { v6, .. } => *v6,
    }
}

fn not_an_endpoint(text: &str) -> String {
    format!("{text:?} is no address and port in numbers: list with -n")
}

/// Reads `A:PORT` or `[A]:PORT`.
fn parse_endpoint(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    let address = match address.strip_prefix('[') {
        Some(address) => address.strip_suffix(']')?,
        None => address,
    };
    Some((address.parse().ok()?, port.parse().ok()?))
}

/// Reads a dotted mask or a length of prefix.
fn parse_mask(text: &str) -> Option<u8> {
    if let Ok(mask) = text.parse::<Ipv4Addr>() {
        let bits = mask.to_bits();
        return (bits.leading_ones() == bits.count_ones()).then_some(bits.count_ones() as u8);
    }
    text.parse().ok().filter(|len| *len <= 128)
}

fn read_columns(columns: Columns, values: &[&str], destination: &mut Destination) -> Done {
    let number = |at: usize, what: &str| {
        let value = values.get(at).ok_or_else(|| format!("the line ends before the {what}"))?;
        value.parse::<u32>().map_err(|_| format!("{value:?} is no {what}"))
    };
    match columns {
        Columns::State => {
            let forward = values.first().copied().unwrap_or("");
            destination.forward = match forward {
                "Masq" => Forward::Masq,
                "Route" => Forward::Route,
                "Tunnel" => Forward::Tunnel,
                "Local" => Forward::Local,
                _ => return Err(format!("{forward:?} is no way of forwarding")),
            };
            destination.weight = number(1, "weight")?;
        }
        Columns::Persistent => destination.weight = number(0, "weight")?,
        Columns::Thresholds => {
            destination.upper = number(0, "upper threshold")?;
            destination.lower = number(1, "lower threshold")?;
        }
        Columns::Traffic => {
            return Err("the line does not show the weight: it is taken to be 1".to_owned());
        }
    }
    destination.active = number(2, "number of active connections")?;
    destination.inactive = number(3, "number of inactive connections")?;
    match values.get(4) {
        Some(more) => Err(format!("{more:?} stands behind the last column")),
        None => Ok(()),
    }
}

/// The options of a command, taken one by one.
struct Options<'t> {
    words: Vec<Option<&'t str>>,
}

impl<'t> Options<'t> {
    fn new(words: &[&'t str]) -> Options<'t> {
        Options { words: words.iter().copied().map(Some).collect() }
    }

    fn place(&self, names: &[&str]) -> Option<usize> {
        self.words.iter().position(|word| word.is_some_and(|word| names.contains(&word)))
    }

    fn flag(&mut self, names: &[&str]) -> bool {
        self.place(names).is_some_and(|at| self.words[at].take().is_some())
    }

    /// Takes an option with its value.
    fn value(&mut self, names: &[&str]) -> Option<&'t str> {
        let at = self.place(names)?;
        self.words[at] = None;
        self.words.get_mut(at + 1)?.take()
    }

    /// Takes an option whose value may be missing.
    fn optional(&mut self, names: &[&str]) -> Option<&'t str> {
        let at = self.place(names)?;
        self.words[at] = None;
        let value = self.words.get_mut(at + 1);
        let value = value.filter(|word| word.is_some_and(|word| !word.starts_with('-')));
        Some(value.and_then(Option::take).unwrap_or(""))
    }

    fn service(&mut self) -> Result<ServiceId, String> {
        let kinds = [
            (["-t", "--tcp-service"], Protocol::TCP),
            (["-u", "--udp-service"], Protocol::UDP),
            (["--sctp-service", "--sctp-service"], Protocol::SCTP),
        ];
        for (names, protocol) in kinds {
            if let Some(text) = self.value(&names) {
                let (address, port) = parse_endpoint(text).ok_or_else(|| not_an_endpoint(text))?;
                return Ok(ServiceId::Address(protocol, address, port));
            }
        }
        let mark = self.value(&["-f", "--fwmark-service"]).ok_or("no service is named")?;
        let mark = mark.parse().map_err(|_| format!("{mark:?} is no mark"))?;
        Ok(ServiceId::Mark { mark, v6: self.flag(&["-6", "--ipv6"]) })
    }

    fn end(&self) -> Done {
        match self.words.iter().flatten().next() {
            Some(word) => Err(format!("option {word:?} is ignored")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
