//! Linux netfilter at packet level.

pub mod conntrack;
mod device;
mod hash;
pub mod hook;
pub mod host;
mod nat;
pub mod netns;
pub mod packet;
mod prefix;
pub mod rule;
#[cfg(test)]
mod testing;
pub mod time;
pub mod traverse;
pub mod tuple;

pub use device::{DeviceId, DeviceName, DeviceNameError, DevicePattern};
pub use prefix::Prefix;
