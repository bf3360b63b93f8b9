package s3

import (
	"encoding/base64"
	"net/http"
	"strings"
)

// checksumsOfParts compares the checksum that a completion names. One of type FULL_OBJECT, or of an
// algorithm that has no other, is of the object's bytes and is returned, for whoever puts these
// together; crc is their CRC32C, which is compared at once. Any other is composite, the checksum of
// the checksums of the parts, sometimes with -<parts> behind it, and compared here, if each part
// came with one.
func checksumsOfParts(h http.Header, parts []*part, crc uint32) (checksums, error) {
	full := http.Header{}
	for name := range algorithms {
		text := h.Get(checksumPrefix + name)
		switch {
		case text == "":
		case name == "crc32c" && strings.EqualFold(h.Get("x-amz-checksum-type"), "FULL_OBJECT"):
			if text != crcText(crc) {
				return nil, refusal("BadDigest", "The CRC32C you specified did not match the calculated checksum.")
			}
		case name == "crc64nvme" || strings.EqualFold(h.Get("x-amz-checksum-type"), "FULL_OBJECT"):
			full.Set(checksumPrefix+name, text)
		default:
			if err := compareComposite(name, text, parts); err != nil {
				return nil, err
			}
		}
	}
	return headerSums(full)
}

func compareComposite(name, text string, parts []*part) error {
	sum := algorithms[name]()
	for _, p := range parts {
		if p.sum.name != name {
			return nil
		}
		digest, err := base64.StdEncoding.DecodeString(p.sum.text)
		if err != nil {
			return err
		}
		_, _ = sum.Write(digest)
	}
	text, _, _ = strings.Cut(text, "-")
	if text != base64.StdEncoding.EncodeToString(sum.Sum(nil)) {
		return refusal("BadDigest", "The %s%s you specified is not that of the parts' checksums.", checksumPrefix, name)
	}
	return nil
}
