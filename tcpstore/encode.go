package tcpstore

import "encoding/binary"

// appendInt appends an i64 or u64 field, which look the same on the wire.
func appendInt[T int | int64 | uint64](dst []byte, n T) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(n))
}

func appendText[T string | []byte](dst []byte, text T) []byte {
	return append(appendInt(dst, len(text)), text...)
}

func appendHello(dst []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, byte(opValidate)), magic)
}

func appendPing(dst []byte, nonce uint32) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, byte(opPing)), nonce)
}
