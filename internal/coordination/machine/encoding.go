package machine

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"

	"github.com/blackhole/blackhole/pkg/fault"
)

// encoder writes the state as numbers (unsigned varints) and byte strings (length, bytes) without
// names. The format's version defines their order. Every value has one encoding, so equal states
// have equal bytes.
type encoder struct {
	w   io.Writer
	buf []byte
}

func (e *encoder) uint(v uint64) { e.buf = binary.AppendUvarint(e.buf, v) }

// int writes a number from 0 up.
func (e *encoder) int(v int64) { e.uint(uint64(v)) }

func (e *encoder) bool(v bool) {
	if v {
		e.uint(1)
	} else {
		e.uint(0)
	}
}

func (e *encoder) string(s string) {
	e.uint(uint64(len(s)))
	e.buf = append(e.buf, s...)
}

func (e *encoder) bytes(b []byte) {
	e.uint(uint64(len(b)))
	e.buf = append(e.buf, b...)
}

// flush passes the buffer on. The writers here keep their error until the end.
func (e *encoder) flush() {
	if len(e.buf) > 0 {
		_, _ = e.w.Write(e.buf)
		e.buf = e.buf[:0]
	}
}

// decoder reads what encoder wrote. After the first error it reads zeros.
type decoder struct {
	in  *bufio.Reader
	err error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) check(ok bool, field, what string) {
	if !ok {
		d.fail(fault.Refused(fault.Invalid, field, "%s", what))
	}
}

// uint reads a number in its shortest form.
func (d *decoder) uint() uint64 {
	var v uint64
	for shift := 0; d.err == nil; shift += 7 {
		b, err := d.in.ReadByte()
		if err != nil {
			d.fail(cut(err))
			break
		}
		if shift == 63 && b > 1 || shift > 0 && b == 0 {
			d.fail(fault.Refused(fault.Invalid, "number", "is not in its shortest form or too large"))
			break
		}
		if v |= uint64(b&0x7f) << shift; b < 0x80 {
			return v
		}
	}
	return 0
}

func (d *decoder) int() int64 {
	v := d.uint()
	d.check(v <= math.MaxInt64, "number", "is too large")
	return int64(v)
}

func (d *decoder) uint32() uint32 {
	v := d.uint()
	d.check(v <= math.MaxUint32, "number", "is too large")
	return uint32(v)
}

func (d *decoder) bool() bool {
	v := d.uint()
	d.check(v <= 1, "flag", "must be 0 or 1")
	return v == 1
}

// bytes reads a byte string. Memory grows with the bytes received, not with the claimed length.
func (d *decoder) bytes() []byte {
	const piece = 64 << 10
	n := d.uint()
	if n == 0 || d.err != nil {
		return nil
	}
	b := make([]byte, min(n, piece))
	for at := uint64(0); ; {
		if _, err := io.ReadFull(d.in, b[at:]); err != nil {
			d.fail(cut(err))
			return nil
		}
		if at = uint64(len(b)); at == n {
			return b
		}
		b = append(b, make([]byte, min(n-at, at))...)
	}
}

func (d *decoder) string() string { return string(d.bytes()) }

// ended reports whether no data is left.
func (d *decoder) ended() bool {
	_, err := d.in.Peek(1)
	return err == io.EOF
}

// count reads how many things follow and returns a loop condition over them.
func (d *decoder) count() func() bool {
	left := d.uint()
	return func() bool {
		if left == 0 || d.err != nil {
			return false
		}
		left--
		return true
	}
}

// cut keeps errors of the frames, and reports the end of the data as a damaged snapshot.
func cut(err error) error {
	if fault.FieldOf(err) != "" {
		return err
	}
	return damaged("snapshot", err)
}
