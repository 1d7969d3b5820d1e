package sparkdl.comm.ps

import java.nio.file.{Files, Path}

/** Segments without a Python worker: a deleted file that stays open plays the worker's memory file. */
object Memory {
  def withSegment[T](bytes: Long)(body: Segment => T): T = withPath(bytes) { path =>
    val segment = Segment.map(path, bytes)
    try body(segment)
    finally segment.close()
  }

  def withPath[T](bytes: Long)(body: String => T): T = {
    val file = Files.createTempFile("sparkdl-test", ".segment")
    val open = new java.io.RandomAccessFile(file.toFile, "rw")
    try {
      open.setLength(bytes)
      body(descriptor(file))
    } finally {
      open.close()
      Files.deleteIfExists(file)
    }
  }

  private def descriptor(file: Path): String = {
    val descriptors = Files.newDirectoryStream(Path.of(s"/proc/${ProcessHandle.current.pid}/fd"))
    try {
      val found = Iterator
        .continually(())
        .zip(new Iterator[Path] {
          private val all = descriptors.iterator
          override def hasNext: Boolean = all.hasNext
          override def next(): Path = all.next()
        })
        .map(_._2)
        .find(link => scala.util.Try(Files.readSymbolicLink(link)).toOption.contains(file))
      found.get.toString
    } finally descriptors.close()
  }
}
