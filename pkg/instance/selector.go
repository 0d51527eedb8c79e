package instance

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Selector selects instances. The zero value selects all with StatusUp.
type Selector struct {
	Statuses    []Status // any of these; none means StatusUp
	AnyStatus   bool     // ignore the status
	ID          string   // "" means any, here and below
	Zone        string   // the field, or metadata["zone"] without it
	Version     string   // range of semantic versions: 2.x, ^1.2, >=1.0 <2; pre-releases only if named
	Tags        []string // all of these: a tag, key:value of the metadata, or a metadata key with value "true"
	Environment string
	Dependency  string // a service the instance depends on
	PreferZone  string // sorts instances of this zone first
}

// maxRange bounds a version range in bytes.
const maxRange = 256

// Matcher is a compiled Selector, immutable and safe for concurrent use. The
// zero value matches nothing.
type Matcher struct {
	statuses    statusSet
	id          string
	zone        string
	version     *semver.Constraints // nil means any
	tags        []string
	environment string
	dependency  string
	preferZone  string
}

// statusSet has bit s for Status s.
type statusSet uint8

func (s Selector) statusSet() statusSet {
	if s.AnyStatus {
		return 1<<statuses - 1
	}
	var set statusSet
	for _, status := range s.Statuses {
		set |= 1 << status
	}
	set = cmp.Or(set, 1<<StatusUp)
	return set
}

// Compile validates a selector and prepares it for matching. Errors: Invalid,
// field "status", "id", "zone", "version", "tags", "tags[i]", "environment",
// "dependency" or "prefer_zone".
func (s Selector) Compile() (Matcher, error) {
	if i := slices.IndexFunc(s.Statuses, func(x Status) bool { return x >= statuses }); i >= 0 {
		return Matcher{}, fault.Invalidf("status", uint8(s.Statuses[i]), "is not a known status")
	}
	if err := s.validateTexts(); err != nil {
		return Matcher{}, err
	}
	m := Matcher{
		statuses:    s.statusSet(),
		id:          s.ID,
		zone:        s.Zone,
		tags:        sorted(s.Tags),
		environment: s.Environment,
		dependency:  s.Dependency,
		preferZone:  s.PreferZone,
	}
	if s.Version == "" {
		return m, nil
	}
	if len(s.Version) > maxRange {
		return Matcher{}, fault.Invalidf("version", shorten(s.Version), "has %d bytes, limit %d", len(s.Version), maxRange)
	}
	c, err := semver.NewConstraint(s.Version)
	if err != nil {
		return Matcher{}, fault.Invalidf("version", shorten(s.Version), "invalid version range: use for example 2.x, >=1.0 <2")
	}
	m.version = c
	return m, nil
}

func (s Selector) validateTexts() error {
	texts := []struct{ field, text string }{
		{"id", s.ID}, {"zone", s.Zone}, {"environment", s.Environment}, {"dependency", s.Dependency}, {"prefer_zone", s.PreferZone},
	}
	for _, t := range texts {
		if err := fault.Text(t.field, t.text, maxName); err != nil {
			return err
		}
	}
	if len(s.Tags) > MaxTags {
		return tooMany("tags", len(s.Tags), MaxTags)
	}
	for i, tag := range s.Tags {
		if tag == "" {
			return fault.Invalidf("tags"+index(i), nil, "is empty")
		}
		if err := fault.Text("tags"+index(i), tag, maxName+1+maxValue); err != nil {
			return err
		}
	}
	return nil
}

// Match reports whether the selector selects i.
func (m Matcher) Match(i *Instance) bool {
	return m.statuses&(1<<i.Status) != 0 &&
		(m.id == "" || m.id == i.ID) &&
		(m.zone == "" || m.zone == i.Zone()) &&
		(m.environment == "" || m.environment == i.Spec.Environment) &&
		(m.dependency == "" || has(i.Spec.Dependencies, m.dependency)) &&
		m.matchTags(i) &&
		m.matchVersion(i.Spec.Version)
}

func (m Matcher) matchTags(i *Instance) bool {
	for _, tag := range m.tags {
		if has(i.Spec.Tags, tag) || i.Spec.Metadata[tag] == "true" {
			continue
		}
		key, value, pair := strings.Cut(tag, ":")
		if got, ok := i.Spec.Metadata[key]; !pair || !ok || got != value {
			return false
		}
	}
	return true
}

func (m Matcher) matchVersion(version string) bool {
	if m.version == nil {
		return true
	}
	v, err := semver.StrictNewVersion(version)
	return err == nil && m.version.Check(v)
}

// Compare orders a result: the preferred zone first, then service and id.
func (m Matcher) Compare(a, b *Instance) int {
	if m.preferZone != "" {
		if x, y := a.Zone() == m.preferZone, b.Zone() == m.preferZone; x != y {
			if x {
				return -1
			}
			return 1
		}
	}
	return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.ID, b.ID))
}

// Zone returns the field, or the metadata without it.
func (i *Instance) Zone() string { return cmp.Or(i.Spec.Zone, i.Spec.Metadata["zone"]) }

// has searches an ascending list.
func has(list []string, text string) bool {
	_, ok := slices.BinarySearch(list, text)
	return ok
}

// Canonical returns a text that is equal for selectors with equal results and
// order, whatever the order of their statuses and tags. The zero value has "".
func (s Selector) Canonical() string {
	if s.simple() {
		return ""
	}
	return string(s.AppendCanonical(make([]byte, 0, 64)))
}

// AppendCanonical appends Canonical, for a lookup without allocation.
func (s Selector) AppendCanonical(b []byte) []byte {
	if s.simple() {
		return b
	}
	b = strconv.AppendUint(b, uint64(s.statusSet()), 16)
	b = appendText(b, 'i', s.ID)
	b = appendText(b, 'z', s.Zone)
	b = appendText(b, 'v', s.Version)
	b = appendText(b, 'e', s.Environment)
	b = appendText(b, 'd', s.Dependency)
	b = appendText(b, 'p', s.PreferZone)
	tags := s.Tags
	if len(tags) > 1 {
		tags = sorted(tags)
	}
	for _, tag := range tags {
		b = appendText(b, 't', tag)
	}
	return b
}

// simple reports whether s selects like the zero value.
func (s Selector) simple() bool {
	return s.ID == "" && s.Zone == "" && s.Version == "" && len(s.Tags) == 0 && s.Environment == "" &&
		s.Dependency == "" && s.PreferZone == "" && s.statusSet() == 1<<StatusUp
}

// appendText appends a non-empty text with its length, which makes its end
// unambiguous.
func appendText(b []byte, label byte, text string) []byte {
	if text == "" {
		return b
	}
	b = append(b, label)
	b = strconv.AppendInt(b, int64(len(text)), 10)
	b = append(b, ':')
	return append(b, text...)
}
