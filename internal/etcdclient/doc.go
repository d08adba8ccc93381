// Package etcdclient speaks to an etcd (3.4 or newer, its v3 API) for the store and the
// log in it, by etcd's own client; what of that it uses, and what not, is in
// docs/decisions/0011.
package etcdclient
