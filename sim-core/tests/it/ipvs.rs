//! IPVS mode of a made-up shop: as text, and in the kernel as far as it can be loaded where there
//! is no IPVS.

use expect_test::expect_file;
use netfilter_model::hook::Table;
use netfilter_model::read::ipvsadm;
use netfilter_model::rule::iptables_save;
use netfilter_model::time::SimTime;
use netfilter_model::tuple::Family;
use sim_core::kube::manifest::Manifest;
use sim_core::proxy::ipvs::Ipvs;
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::Objects;

use crate::lab::{Lab, Tool, skip};

fn rules(node: &str, family: Family) -> Ipvs {
    let value = serde_json::from_str(include_str!("../data/proxy/shop.json")).expect("JSON");
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&value).expect("valid objects") {
        objects.add(manifest.object);
    }
    Ipvs::of(&objects.state(node, family, Profile::V1_30)).expect("rules")
}

const SIDES: [(&str, Family); 3] = [("n1", Family::V4), ("n2", Family::V4), ("n1", Family::V6)];

#[test]
fn what_a_proxy_makes_of_a_shop() {
    for (node, family) in SIDES {
        let six = if family == Family::V6 { "6" } else { "" };
        let file = |form: &str| {
            format!("{}/tests/data/proxy/shop.{node}.{form}{six}", env!("CARGO_MANIFEST_DIR"))
        };
        let rules = rules(node, family);
        expect_file![file("ipvs")].assert_eq(&rules.restore());
        expect_file![file("ipvsadm")].assert_eq(&rules.servers().list());
        expect_file![file("ipvs-save")].assert_eq(&iptables_save(&rules.to_ruleset().unwrap()));
    }
}

#[test]
fn virtual_servers_read_back_from_both_forms() {
    for (node, family) in SIDES {
        let rules = rules(node, family);
        for text in [rules.servers().list(), rules.servers().save()] {
            let read = ipvsadm(&text);
            assert_eq!(read.remarks, []);
            assert_eq!(&read.value, rules.servers());
        }
    }
}

#[test]
fn the_kernel_takes_the_sets() {
    let lab = match Lab::try_new(Tool::Legacy) {
        Ok(lab) => lab,
        Err(reason) => return skip("sets of IPVS mode in the kernel", &reason),
    };
    for (node, family) in SIDES {
        let ours = rules(node, family).sets().save(SimTime::ZERO);
        if let Err(reason) = lab.node("ipset", &["restore"], &ours) {
            return skip("sets of IPVS mode in the kernel", &reason);
        }
        let kept = lab.node("ipset", &["save"], "").unwrap();
        // The kernel prints how its tables are laid out, too.
        let kept: Vec<String> = kept.lines().map(plain).collect();
        let mut kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        let mut ours: Vec<&str> = ours.lines().collect();
        kept.sort_unstable();
        ours.sort_unstable();
        assert_eq!(kept, ours, "{node} {family:?}");
        lab.node("ipset", &["destroy"], "").unwrap();
    }
}

/// Drops `bucketsize N initval N`.
fn plain(line: &str) -> String {
    line.split(" bucketsize ").next().unwrap_or(line).to_owned()
}

/// All but what asks IPVS itself, which needs it in the kernel.
#[test]
fn the_kernel_takes_the_rules_and_prints_them_so() {
    for tool in [Tool::Legacy, Tool::Nft] {
        let lab = match Lab::try_new(tool) {
            Ok(lab) => lab,
            Err(reason) => return skip("rules of IPVS mode in the kernel", &reason),
        };
        for (node, family) in SIDES {
            let rules = rules(node, family);
            if let Err(reason) = lab.node("ipset", &["restore"], &rules.sets().save(SimTime::ZERO))
            {
                return skip("rules of IPVS mode in the kernel", &reason);
            }
            let name = tool.name_of(if family == Family::V4 { "iptables" } else { "ip6tables" });
            let fed = without_ipvs(&rules.iptables_restore());
            let restore = format!("{name}-restore");
            lab.node(&restore, &["--noflush", "--counters"], &fed).expect("it loads");
            let expected = without_ipvs(&iptables_save(&rules.to_ruleset().unwrap()));
            for table in [Table::Nat, Table::Filter] {
                let ours = section(&expected, table);
                let kept = lab.node(&format!("{name}-save"), &["-t", table.name()], "").unwrap();
                let of_proxy = |text: &str| {
                    let lines = text.lines().filter(|line| line.starts_with("-A KUBE-"));
                    lines.map(|line| format!("{line}\n")).collect::<String>()
                };
                assert_eq!(of_proxy(&kept), of_proxy(ours), "{tool:?} {node} {family:?}");
                let kept = lab.reload(tool, family, table.name(), ours).unwrap();
                assert_eq!(kept, ours, "{tool:?} {node} {family:?}");
            }
            for table in ["nat", "filter"] {
                lab.node(&name, &["-t", table, "-F"], "").unwrap();
                lab.node(&name, &["-t", table, "-X"], "").unwrap();
            }
            lab.node("ipset", &["destroy"], "").unwrap();
        }
    }
}

fn without_ipvs(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains(" -m ipvs "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn section(text: &str, table: Table) -> &str {
    let start = text.find(&format!("*{table}\n")).unwrap();
    &text[start..start + text[start..].find("COMMIT\n").unwrap() + "COMMIT\n".len()]
}
