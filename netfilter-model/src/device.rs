//! Network devices: small ids, and names that are matched without string comparison.

use std::fmt;

/// A network device of one host; the host gives ids their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// The name of a device: up to 15 bytes, held as one number so that matching is one comparison.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceName([u8; 16]);

/// A text is no device name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device name {0:?} is not 1 to 15 bytes without blanks and slashes")]
pub struct DeviceNameError(pub String);

impl DeviceName {
    /// Returns the name.
    ///
    /// # Errors
    ///
    /// If it is empty, longer than 15 bytes, or holds a blank or a slash.
    pub fn parse(name: &str) -> Result<DeviceName, DeviceNameError> {
        let legal = |byte: u8| !byte.is_ascii_whitespace() && byte != b'/' && byte != 0;
        if name.is_empty() || name.len() > 15 || !name.bytes().all(legal) {
            return Err(DeviceNameError(name.to_owned()));
        }
        let mut bytes = [0; 16];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(DeviceName(bytes))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(16);
        std::str::from_utf8(&self.0[..end]).expect("made from a str")
    }

    pub(crate) fn bits(self) -> u128 {
        u128::from_le_bytes(self.0)
    }

    /// Returns the name of which these are the bits.
    pub(crate) fn from_bits(bits: u128) -> DeviceName {
        DeviceName(bits.to_le_bytes())
    }

    /// Returns whether one name is the beginning of another, by their bits.
    pub(crate) fn is_prefix(prefix: u128, name: u128) -> bool {
        let mask = u128::MAX.checked_shr(prefix.leading_zeros() / 8 * 8).unwrap_or(0);
        (prefix ^ name) & mask == 0
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// What `-i` and `-o` match: a name, or every name that begins with the text before a `+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePattern {
    name: DeviceName,
    wildcard: bool,
}

impl DevicePattern {
    /// Returns the pattern; a final `+` makes it a prefix.
    ///
    /// # Errors
    ///
    /// If the text is no device name, or only a `+`, which matches everything and is not kept by
    /// iptables.
    pub fn parse(pattern: &str) -> Result<DevicePattern, DeviceNameError> {
        let (name, wildcard) = match pattern.strip_suffix('+') {
            Some(prefix) => (prefix, true),
            None => (pattern, false),
        };
        if wildcard && name.len() > 14 {
            return Err(DeviceNameError(pattern.to_owned()));
        }
        Ok(DevicePattern { name: DeviceName::parse(name)?, wildcard })
    }

    /// Returns whether the name fits. A hook without a device compares as the empty name.
    #[inline]
    pub fn matches(&self, name: Option<DeviceName>) -> bool {
        let name = name.map_or(0, DeviceName::bits);
        let wanted = self.name.bits();
        let mask = if self.wildcard {
            // The bytes of the prefix only: a name is never empty and never 16 bytes long.
            u128::MAX >> (wanted.leading_zeros() / 8 * 8)
        } else {
            u128::MAX
        };
        (name ^ wanted) & mask == 0
    }
}

impl fmt::Display for DevicePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_str())?;
        if self.wildcard { f.write_str("+") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth+", "eth0", true),
            ("eth+", "eth", true),
            ("eth+", "et", false),
            ("eth+", "veth0", false),
            ("cali12345678901", "cali12345678901", true),
            ("cali1234567890+", "cali12345678901", true),
        ];
        for (pattern, name, expected) in cases {
            let name = DeviceName::parse(name).unwrap();
            let pattern = DevicePattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(Some(name)), expected, "{pattern} on {name:?}");
            assert!(!pattern.matches(None));
        }
    }

    #[test]
    fn names_are_checked() {
        for bad in ["", "sixteen-bytes-xx", "a b", "a/b"] {
            assert!(DeviceName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
