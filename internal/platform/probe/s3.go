package probe

// s3Kind asks an S3 server for its buckets, without credentials. A server denies it in XML.
func s3Kind() kind {
	return kind{name: "s3", root: true, schemes: []string{"s3"}, protocols: []string{"s3"}, over: web(), atop: true,
		secure: []string{"https", "s3"}, port: 80, speak: talk}
}
