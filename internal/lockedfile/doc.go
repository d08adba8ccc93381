// Package lockedfile is what file formats share that live by flock(2): a file that
// knows whether its path still names it ([File]), locks that end with a context and
// name who holds them ([File.Lock]), and which file systems and mounts can be trusted with
// that.
package lockedfile
