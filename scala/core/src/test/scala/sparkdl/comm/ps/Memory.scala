package sparkdl.comm.ps

import java.nio.{ByteBuffer, ByteOrder}
import java.nio.file.{Files, Path}

/** Segments without a Python worker. */
object Memory {

  /** Of this JVM's own memory. */
  def allocate(bytes: Long): Segment = {
    val buffer = ByteBuffer.allocateDirect(bytes.toInt).order(ByteOrder.nativeOrder)
    new BufferSegment(Array(buffer), Int.MaxValue.toLong) { override protected def release(): Unit = () }
  }

  /** The path of a deleted file that stays open: it plays the worker's memory file. */
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
