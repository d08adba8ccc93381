//! The functions of rallypoint.h as they are. The crate `rallypoint` makes them safe.
#![no_std]
#![allow(non_camel_case_types)]

include!("bindings.rs");
