//go:build !linux || !cgo || !rdma

package verbs

import "github.com/cognitora/dataplane/rdma"

// Open returns ErrNotBuilt, because this program was built without the tag rdma, or without cgo.
func Open(string, Options) (rdma.Device, error) { return nil, rdma.ErrNotBuilt }
