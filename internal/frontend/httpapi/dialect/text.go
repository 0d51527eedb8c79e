package dialect

import (
	"maps"
	"slices"
	"time"

	"github.com/blackhole/blackhole/pkg/records/jsonform"
)

// appendText appends a field that is left out when it is empty.
func appendText(dst []byte, name, text string) []byte {
	if text == "" {
		return dst
	}
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	return jsonform.AppendString(append(dst, `":`...), text)
}

// appendTexts is appendText for a list.
func appendTexts(dst []byte, name string, texts []string) []byte {
	if len(texts) == 0 {
		return dst
	}
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	return appendArray(append(dst, `":`...), texts)
}

func appendArray(dst []byte, texts []string) []byte {
	dst = append(dst, '[')
	for n, text := range texts {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = jsonform.AppendString(dst, text)
	}
	return append(dst, ']')
}

// appendStrings appends an object, its names ascending.
func appendStrings(dst []byte, m map[string]string) []byte {
	dst = append(dst, '{')
	if len(m) > 0 {
		keys := slices.AppendSeq(make([]string, 0, len(m)), maps.Keys(m))
		slices.Sort(keys)
		for n, k := range keys {
			if n > 0 {
				dst = append(dst, ',')
			}
			dst = append(jsonform.AppendString(dst, k), ':')
			dst = jsonform.AppendString(dst, m[k])
		}
	}
	return append(dst, '}')
}

// Time is a time as text.
func Time(t time.Time) string { return shownTime(t).Format(time.RFC3339Nano) }

// shownTime is a time as it is shown: UTC, to the millisecond.
func shownTime(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// shownBeat is that of a heartbeat, or nil where none is known.
func shownBeat(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = shownTime(t)
	return &t
}

func appendTime(dst []byte, t time.Time) []byte { return jsonform.AppendTime(dst, shownTime(t)) }
