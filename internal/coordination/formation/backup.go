package formation

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

// A backup is the magic, then version of the format, length of the head, and CRC-32C of all before and the head, four bytes each,
// big-endian; the head as JSON; and a snapshot of the state machine, whose frames have checksums and an end of their own.
const (
	backupMagic   = "BHBACKUP"
	backupPrefix  = len(backupMagic) + 12
	maxBackupHead = 64 << 10
)

// backupFormat is the version of the file.
func backupFormat() store.Format[*backupHead] {
	return store.Format[*backupHead]{Name: "backup of a coordination group"}
}

// backupHead says whose state follows.
type backupHead struct {
	Group      string    `json:"group_id"`
	Membership []byte    `json:"membership"` // the initial one, encoded
	Taken      time.Time `json:"taken"`
	By         string    `json:"by"` // peer id
}

// encode returns the backup up to the state.
func (h backupHead) encode() ([]byte, error) {
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	b := binary.BigEndian.AppendUint32([]byte(backupMagic), backupFormat().Version())
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = binary.BigEndian.AppendUint32(b, backupChecksum(b, head))
	return append(b, head...), nil
}

func backupChecksum(prefix, head []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(prefix, table), table, head)
}

// readBackup reads a whole backup into memory, so that nothing is restored from a damaged one. Errors: Invalid and Unsupported,
// field "file".
func readBackup(file io.Reader) (h backupHead, m *machine.Machine, err error) {
	r := bufio.NewReaderSize(file, 256<<10)
	if h, err = readBackupHead(r); err != nil {
		return h, nil, fault.In("file", err)
	}
	if m, err = machine.Current().RestoreFrom(r); err != nil {
		return h, nil, fault.In("file", fault.New("", fault.KindOf(err), "the state in the backup is damaged, cut off or of another version: %s", fault.Message(err)))
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		return h, nil, fault.In("file", fault.New("", fault.Invalid, "something follows the end of the backup: it is damaged"))
	}
	return h, m, nil
}

func readBackupHead(r io.Reader) (h backupHead, err error) {
	prefix := make([]byte, backupPrefix)
	if _, err := io.ReadFull(r, prefix); err != nil {
		return h, fault.New("", fault.Invalid, "is cut off in its first %d bytes, or is no backup", backupPrefix)
	}
	if string(prefix[:len(backupMagic)]) != backupMagic {
		return h, fault.New("", fault.Invalid, "is no backup of a coordination group")
	}
	numbers := prefix[len(backupMagic):]
	version, size := binary.BigEndian.Uint32(numbers), binary.BigEndian.Uint32(numbers[4:])
	if version > backupFormat().Version() {
		return h, backupFormat().Upgrade("this file", version, nil, nil)
	}
	if size > maxBackupHead {
		return h, fault.New("", fault.Invalid, "the head of the backup is damaged: it has %d bytes, at most %d", size, maxBackupHead)
	}
	head := make([]byte, size)
	if _, err := io.ReadFull(r, head); err != nil {
		return h, fault.New("", fault.Invalid, "is cut off in its head")
	}
	if backupChecksum(prefix[:backupPrefix-4], head) != binary.BigEndian.Uint32(numbers[8:]) {
		return h, fault.New("", fault.Invalid, "the head of the backup is damaged: wrong checksum")
	}
	if err := strictjson.Decode(head, maxBackupHead, &h); err != nil {
		return h, fault.New("", fault.Invalid, "the head of the backup is damaged: %s", fault.Message(err))
	}
	return h, backupFormat().Upgrade("this file", version, &h, func(uint32) error { return nil })
}

// WriteBackup writes the backup of a group from the state of a member at one revision. Errors: Internal; Canceled if w fails.
func WriteBackup(w io.Writer, image io.WriterTo, group string, membership []byte, by string, now time.Time) error {
	head, err := backupHead{Group: group, Membership: membership, Taken: now.UTC(), By: by}.encode()
	if err != nil {
		return fault.As("", fault.Internal, err)
	}
	if _, err = w.Write(head); err == nil {
		_, err = image.WriteTo(w)
	}
	return fault.As("", fault.Canceled, err)
}
