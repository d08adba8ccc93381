// Package tcpstore speaks the wire protocol of PyTorch's TCPStore: a Server that
// stock clients of torch 2.2 and newer connect to unchanged, and a Client which
// is a store.Store and works with this and with stock servers.
//
// The protocol is docs/spec/tcpstore-wire.md, whose section numbers the comments
// give. Clients of torch 2.1 and older number their operations differently and
// are refused.
//
// From the inside out: parser cuts a byte stream into requests, session carries them out on a
// store.Engine and collects the replies, conn moves the bytes between a socket and its session,
// loop serves many conns in one goroutine, and Server accepts connections for its loops. Only
// conn and Client read and write sockets. With a token (Options.Secure) openings admit a
// connection by TLS and a proof, and an eventloop.TLS is between its conn and the socket.
package tcpstore
