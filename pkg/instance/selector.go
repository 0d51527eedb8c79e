package instance

// Selector picks instances. The zero value picks those that are UP.
type Selector struct {
	Statuses    []Status // any of them; none: StatusUp
	AnyStatus   bool     // whatever the status
	ID          string   // "": any, as for those below
	Zone        string   // of the field, or metadata["zone"]
	Version     string   // a range of semantic versions such as 2.x, ^1.2, >=1.0 <2
	Tags        []string // all of them: a tag, or key:value of the metadata, or a key that is "true"
	Environment string
	Dependency  string // a service that it depends on
	PreferZone  string // orders: those of this zone first
}
