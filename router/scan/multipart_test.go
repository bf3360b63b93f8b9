package scan

import (
	"bytes"
	"mime/multipart"
	"strings"
	"testing"
)

// form writes a multipart body with the library's writer.
func form(t *testing.T, fields [][2]string, file []byte) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile("file", `name="model"; x.wav`)
	if err != nil {
		t.Fatal(err)
	}
	part.Write(file)
	for _, f := range fields {
		w.WriteField(f[0], f[1])
	}
	w.Close()
	return w.FormDataContentType(), b.Bytes()
}

func TestMultipart(t *testing.T) {
	file := bytes.Repeat([]byte("\r\n--\r\n\r\nname=\"model\"\x00\xff"), 5000)
	contentType, body := form(t, [][2]string{{"language", "en"}, {"model", "whisper"}, {"stream", "True"}}, file)
	var r Request
	if err := ScanMultipart([]byte(contentType), body, &r); err != nil {
		t.Fatal(err)
	}
	if string(r.Model) != "whisper" || !r.Stream || string(body[r.root.model.Start:r.root.model.End]) != "whisper" {
		t.Errorf("model %q, stream %v", r.Model, r.Stream)
	}
	var e Edits
	e.Reset(&r, body)
	e.Model("w-2")
	e.IncludeUsage()
	if e.Err() != nil {
		t.Fatal(e.Err())
	}
	edited := join(e.Segments(nil))
	reader := multipart.NewReader(bytes.NewReader(edited), contentType[strings.Index(contentType, "=")+1:])
	parsed, err := reader.ReadForm(1 << 20)
	if err != nil || parsed.Value["model"][0] != "w-2" || parsed.File["file"][0].Size != int64(len(file)) {
		t.Errorf("edited form: %v %v", err, parsed)
	}
}

func TestMultipartSpellings(t *testing.T) {
	for name, c := range map[string][2]string{
		"plain": {`multipart/form-data; boundary=b`, "--b\r\nContent-Disposition: form-data; " +
			"name=\"model\"\r\n\r\nm\r\n--b--\r\n"},
		"quoted boundary": {`multipart/form-data; charset=utf-8; Boundary="b"`, "--b\r\nContent-Disposition: " +
			"form-data; name=\"model\"\r\n\r\nm\r\n--b--"},
		"unquoted name": {`multipart/form-data;boundary=b`,
			"--b\r\ncontent-disposition:form-data;name=model\r\nContent-Type: text/plain\r\n\r\nm\r\n--b--"},
		"preamble": {`multipart/form-data; boundary=b`, "hello\r\n--b \t\r\nContent-Disposition: form-data; " +
			"name=\"model\"\r\n\r\nm\r\n--b--\r\nepilogue"},
		"file called model": {`multipart/form-data; boundary=b`, "--b\r\nContent-Disposition: form-data; " +
			"name=\"model\"; filename=\"x\"\r\n\r\nno\r\n--b\r\nContent-Disposition: form-data; " +
			"name=\"model\"\r\n\r\nm\r\n--b--"},
		"escaped file name": {`multipart/form-data; boundary=b`, "--b\r\nContent-Disposition: form-data; " +
			"name=\"file\"; filename=\"a\\\"; name=\\\"model\"\r\n\r\nno\r\n--b\r\nContent-Disposition: form-data; " +
			"name=\"model\"\r\n\r\nm\r\n--b--"},
		"empty stream": {`multipart/form-data; boundary=b`, "--b\r\nContent-Disposition: form-data; " +
			"name=\"stream\"\r\n\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--"},
		"boundary in a value": {`multipart/form-data; boundary=b`, "--b\r\nContent-Disposition: form-data; " +
			"name=\"x\"\r\n\r\nx--b --b--\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--"},
	} {
		var r Request
		if err := ScanMultipart([]byte(c[0]), []byte(c[1]), &r); err != nil || string(r.Model) != "m" || r.Stream {
			t.Errorf("%s: model %q, %v", name, r.Model, err)
		}
	}
}

func TestMultipartErrors(t *testing.T) {
	const contentType = "multipart/form-data; boundary=b"
	field := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	for _, c := range []struct{ contentType, body, param, message, code string }{
		{"multipart/form-data", "", "Content-Type", "no usable boundary", CodeMultipart},
		{"multipart/form-data; boundary=", "", "Content-Type", "no usable boundary", CodeMultipart},
		{"multipart/form-data; boundary=" + strings.Repeat("b", 71), "", "Content-Type", "no usable boundary", CodeMultipart},
		{contentType, "", "", "does not occur", CodeMultipart},
		{contentType, `{"model":"m"}`, "", "does not occur", CodeMultipart},
		{contentType, "--b--", "model", "`model` is missing", CodeMissing},
		{contentType, field("model", "m"), "", "closing boundary is missing", CodeMultipart},
		{contentType, "--b", "", "not followed by a line end", CodeMultipart},
		{contentType, "--bX\r\n", "", "not followed by a line end", CodeMultipart},
		{contentType, "--b\r\nno headers\r\n--b--", "", "headers of a part have no end", CodeMultipart},
		{contentType, "--b\r\nX: " + strings.Repeat("x", 10000) + "\r\n\r\nv\r\n--b--", "", "too long", CodeMultipart},
		{contentType, field("model", "m") + field("model", "m") + "--b--", "model", "appears twice", CodeValue},
		{contentType, field("model", "") + "--b--", "model", "is missing", CodeMissing},
		{contentType, field("model", strings.Repeat("m", 5000)) + "--b--", "model", "too long", CodeTooLong},
		{contentType, field("stream", "maybe") + "--b--", "stream", "must be true or false", CodeValue},
		{contentType, strings.Repeat(field("x", "y"), 300) + "--b--", "", "too many parts", CodeMultipart},
	} {
		var r Request
		err := ScanMultipart([]byte(c.contentType), []byte(c.body), &r)
		e, ok := err.(*Error)
		if !ok || e.Param != c.param || e.Code != c.code || !strings.Contains(e.Message, c.message) ||
			e.Offset > len(c.body) {
			t.Errorf("%.60q: got %v, want %s: %s", c.body, err, c.param, c.message)
		}
	}
}

func FuzzMultipart(f *testing.F) {
	f.Add([]byte("multipart/form-data; boundary=b"), []byte("--b\r\nContent-Disposition: form-data; "+
		"name=\"model\"\r\n\r\nm\r\n--b--"))
	f.Add([]byte("multipart/form-data; boundary=\"b\\\""), []byte("x\r\n--b\r\n\r\n\r\n--b--"))
	f.Fuzz(func(t *testing.T, contentType, body []byte) {
		var r Request
		err := ScanMultipart(contentType, body, &r)
		if _, ok := err.(*Error); err != nil && !ok {
			t.Fatalf("%T", err)
		}
		if err == nil && (len(r.Model) == 0 || string(body[r.root.model.Start:r.root.model.End]) != string(r.Model)) {
			t.Fatalf("model %q at %v", r.Model, r.root.model)
		}
	})
}
