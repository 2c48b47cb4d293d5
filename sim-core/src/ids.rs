//! Dense identifiers of entities, and vectors indexed by them.
//!
//! An id never feeds a random draw and never decides the order of output; names do.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The first of its kind.
            pub const FIRST: $name = $name(0);
            /// No entity has a greater id.
            pub const LAST: $name = $name(u32::MAX);
        }

        impl Id for $name {
            fn from_index(index: usize) -> $name {
                $name(u32::try_from(index).expect("more than 2^32 entities of one kind"))
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

/// A dense identifier: the position of an entity in its [`IdVec`].
pub trait Id: Copy {
    /// Returns the id of the entity at `index`.
    ///
    /// # Panics
    ///
    /// If `index` does not fit 32 bits.
    fn from_index(index: usize) -> Self;

    /// Returns the position of the entity in its vector.
    fn index(self) -> usize;
}

ids! {
    /// A node of the cluster.
    NodeId
    /// A Pod, live or gone; ids are not reused.
    PodId
    /// A Service port: one (Service, port) pair, what kube-proxy calls a service port.
    ServicePortId
    /// A Service.
    ServiceId
    /// A Deployment.
    DeploymentId
    /// A group of clients.
    ClientId
    /// A deletion window.
    WindowId
}

/// A vector whose index is an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    id: PhantomData<I>,
}

impl<I, T> Default for IdVec<I, T> {
    fn default() -> Self {
        IdVec { items: Vec::new(), id: PhantomData }
    }
}

impl<I: Id, T> IdVec<I, T> {
    /// Returns an empty vector.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends `item` and returns its id.
    pub fn push(&mut self, item: T) -> I {
        let id = I::from_index(self.items.len());
        self.items.push(item);
        id
    }

    /// Returns how many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Iterates over ids and items in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(index, item)| (I::from_index(index), item))
    }

    /// Iterates over ids and items in order, mutably.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (I, &mut T)> {
        self.items.iter_mut().enumerate().map(|(index, item)| (I::from_index(index), item))
    }

    /// Iterates over the ids in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::from_index)
    }

    /// Returns the item of `id`, if there is one.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// Returns the items as a slice, in the order of their ids.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }
}

impl<I: Id, T> Index<I> for IdVec<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IdVec<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I: Id, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(items: It) -> Self {
        IdVec { items: items.into_iter().collect(), id: PhantomData }
    }
}
