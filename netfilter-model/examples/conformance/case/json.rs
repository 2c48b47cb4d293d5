//! Reading fields of JSON objects.

use std::net::IpAddr;

use serde_json::Value;

/// Fields of an object.
pub(super) trait Get {
    /// Returns a text.
    fn text(&self, key: &str) -> Option<&str>;
    /// Returns a whole number.
    fn number(&self, key: &str) -> Option<u64>;
    /// Returns a truth value; false if there is none.
    fn flag(&self, key: &str) -> bool;
    /// Returns a list; empty if there is none.
    fn list(&self, key: &str) -> &[Value];
    /// Returns a list of texts.
    fn texts(&self, key: &str) -> Vec<String>;
    /// Returns an address.
    fn address(&self, key: &str) -> Result<Option<IpAddr>, String>;
    /// Returns what is a text or a list of lines.
    fn lines(&self, key: &str) -> Option<String>;
}

impl Get for Value {
    fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn list(&self, key: &str) -> &[Value] {
        self.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn texts(&self, key: &str) -> Vec<String> {
        self.list(key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn address(&self, key: &str) -> Result<Option<IpAddr>, String> {
        self.text(key).map(parse_address).transpose()
    }

    fn lines(&self, key: &str) -> Option<String> {
        match self.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Array(_) => Some(self.texts(key).join("\n") + "\n"),
            _ => None,
        }
    }
}

/// Returns the address, or says what is wrong.
pub(super) fn parse_address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is no address"))
}
