package prove

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const device = "eth0" // of each machine

// A network is two machines with a cable between them: network namespaces, of which the first is
// this process's own. One locked thread makes it and calls its methods.
type network struct{ machines [2]*os.File }

func machineAddress(i int) []byte { return []byte{10, 0, 0, byte(i + 1)} }

func newNetwork() (*network, error) {
	n := &network{}
	var err error
	if n.machines[0], err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return nil, err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	n.machines[1], err = os.Open("/proc/thread-self/ns/net")
	back := unix.Setns(int(n.machines[0].Fd()), unix.CLONE_NEWNET)
	if err = errors.Join(err, os.NewSyscallError("setns", back)); err != nil {
		return nil, err
	}
	if err := addCable(n.machines[1]); err != nil {
		return nil, fmt.Errorf("a pair of network devices: %w", err)
	}
	for i := range n.machines {
		err := n.in(i, func() error {
			return errors.Join(setDevice("lo", nil, true), setDevice(device, machineAddress(i), true))
		})
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

// in calls f in a machine: a process that it starts lives there.
func (n *network) in(machine int, f func() error) error {
	if err := unix.Setns(int(n.machines[machine].Fd()), unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("setns", err)
	}
	err := f()
	return errors.Join(err, os.NewSyscallError("setns", unix.Setns(int(n.machines[0].Fd()), unix.CLONE_NEWNET)))
}

// unplug takes the cable out of a machine. The other one hears nothing any more.
func (n *network) unplug(machine int) error {
	return n.in(machine, func() error { return setDevice(device, nil, false) })
}

// setDevice gives a device of the present namespace its address, unless nil, and sets it up or down.
func setDevice(name string, address []byte, up bool) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	for _, set := range []struct {
		request uint
		value   []byte
	}{{unix.SIOCSIFADDR, address}, {unix.SIOCSIFNETMASK, []byte{255, 255, 255, 252}}} { // all else is out of reach, and known to be
		if address == nil {
			break
		}
		if err = request.SetInet4Addr(set.value); err == nil {
			err = unix.IoctlIfreq(s, set.request, request)
		}
		if err != nil {
			return fmt.Errorf("the address of %s: %w", name, err)
		}
	}
	flags := uint16(0)
	if up {
		flags = unix.IFF_UP
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("%s up %t: %w", name, up, err)
	}
	return nil
}

// addCable makes a pair of devices, one here and one in another namespace, by rtnetlink.
func addCable(to *os.File) error {
	name := attribute(unix.IFLA_IFNAME, []byte(device+"\x00"))
	const vethInfoPeer = 1 // VETH_INFO_PEER of linux/veth.h
	fd := binary.NativeEndian.AppendUint32(nil, uint32(to.Fd()))
	peer := attribute(vethInfoPeer, make([]byte, unix.SizeofIfInfomsg), name, attribute(unix.IFLA_NET_NS_FD, fd))
	info := attribute(unix.IFLA_LINKINFO, attribute(unix.IFLA_INFO_KIND, []byte("veth")), attribute(unix.IFLA_INFO_DATA, peer))
	body := slices.Concat(make([]byte, unix.SizeofIfInfomsg), name, info)
	order := binary.NativeEndian
	message := order.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	message = order.AppendUint16(message, unix.RTM_NEWLINK)
	message = order.AppendUint16(message, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	message = append(message, make([]byte, 8)...) // sequence number, sender
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)
	if err := unix.Sendto(s, append(message, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	got, _, err := unix.Recvfrom(s, answer, 0)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	if got < unix.SizeofNlMsghdr+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is not understood")
	}
	if code := int32(order.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// attribute is one of rtnetlink's: its length, its kind and its content, to a multiple of four bytes.
func attribute(kind uint16, content ...[]byte) []byte {
	body := slices.Concat(content...)
	a := binary.NativeEndian.AppendUint16(nil, uint16(4+len(body)))
	a = append(binary.NativeEndian.AppendUint16(a, kind), body...)
	return append(a, make([]byte, (4-len(a)%4)%4)...)
}
