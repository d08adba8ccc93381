// Package httpport is what the two ports share that speak HTTP: a control plane's, which also
// speaks its own protocol, and an agent's. It reads requests, bounds them and their answers,
// and keeps the pages of strangers from reading what is answered without a password: a page
// can make its own name resolve to this machine (DNS rebinding). To the browser, which this
// machine or its network trusts, the service then is the page's own.
package httpport
