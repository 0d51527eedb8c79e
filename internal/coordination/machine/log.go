package machine

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Encode returns a command as a log entry, behind room for as many bytes. The entry holds the API's request itself. Encode
// drops unknown fields: a member of a later version must read the entry as this one does. It sets the feature
// level that the group needs for the command, and returns it.
//
// Errors: Invalid; Unsupported for an unknown request.
func (f Features) Encode(cmd *coordv1.Command, room int) (encoded []byte, level uint32, err error) {
	const op = "machine.Encode"
	switch cmd.Level = f.levelOf(cmd); {
	case cmd.Level == 0:
		return nil, 0, fault.Wrap(op, fault.Refused(fault.Unsupported, "op", "is not known to this peer, or is no command of the log"))
	case cmd.Level > f.Levels.Max:
		return nil, 0, fault.Wrap(op, fault.Refused(fault.Unsupported, "level", "the command needs feature level %d, this peer supports %v", cmd.Level, f.Levels))
	}
	dropUnknown(cmd.ProtoReflect())
	b := make([]byte, room, room+proto.Size(cmd))
	encoded, err = proto.MarshalOptions{Deterministic: true, UseCachedSize: true}.MarshalAppend(b, cmd)
	return encoded, cmd.Level, fault.As(op, fault.Invalid, err)
}

func dropUnknown(m protoreflect.Message) {
	if len(m.GetUnknown()) > 0 {
		m.SetUnknown(nil)
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.Message() == nil:
		case field.IsList():
			for i := range v.List().Len() {
				dropUnknown(v.List().Get(i).Message())
			}
		case !field.IsMap(): // requests have no maps
			dropUnknown(v.Message())
		}
		return true
	})
}

// Decode reads a log entry of a group at a feature level. A member that cannot decode a committed entry
// must stop: skipping the entry would diverge. Members of the group support its level, so that an entry
// above it, or an unknown one below, is damage. Apply refuses a contradictory request, on every member alike.
//
// Errors: Invalid; Unsupported for a level that this program does not support.
func (f Features) Decode(b []byte, group uint32) (*coordv1.Command, error) {
	const op = "machine.Decode"
	cmd := new(coordv1.Command)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, cmd); err != nil {
		return nil, fault.As(op, fault.Invalid, err)
	}
	if err := f.check(cmd, group); err != nil {
		return nil, fault.Wrap(op, err)
	}
	if size := proto.Size(cmd); size != len(b) {
		return nil, fault.New(op, fault.Invalid, "%d of %d bytes are unknown fields or not in their shortest form", len(b)-size, len(b))
	}
	return cmd, nil
}
