//! Linux netfilter at packet level.

pub mod time;
