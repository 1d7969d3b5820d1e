package sparkdl.comm.ps

import java.io.{IOException, RandomAccessFile}
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path}

import sparkdl.comm.CommException

/**
 * Memory of one Python worker, mapped by this JVM too. It has no name in any file system. The worker made it with
 * memfd_create and keeps it open while this JVM maps it through /proc. So the kernel frees it once both processes are
 * gone, even after a crash.
 */
private[comm] final class MappedSegment private (windows: Array[MappedByteBuffer])
    extends BufferSegment(windows.map(window => window: ByteBuffer), DirectWindows.Bytes) {
  override protected def release(): Unit = windows.foreach(DirectWindows.free)
}

private[comm] object MappedSegment {

  /**
   * Map the `bytes` bytes behind `path` for reading and writing.
   *
   * @throws CommException if the path is not a worker's open memory file, has another size, or can be truncated
   * @throws java.io.IOException if it cannot be opened
   */
  def map(path: String, bytes: Long): MappedSegment = map(path, bytes, FileChannel.MapMode.READ_WRITE)

  /** Map the `bytes` bytes behind `path` for reading. A write to them throws a ReadOnlyBufferException. */
  def read(path: String, bytes: Long): MappedSegment = map(path, bytes, FileChannel.MapMode.READ_ONLY)

  private def map(path: String, bytes: Long, mode: FileChannel.MapMode): MappedSegment = {
    def refuse(why: String): Nothing = throw new CommException(CommException.Protocol, s"segment $path $why")
    if (!path.matches("/proc/[0-9]+/fd/[0-9]+")) refuse("is not a path of a worker: expected /proc/PID/fd/N")
    if (!isMemoryFile(Path.of(path))) refuse("is not a memory file: expected one of memfd_create")
    val file = new RandomAccessFile(path, "rw")
    try {
      if (file.length != bytes) refuse(s"has ${file.length} bytes: expected $bytes")
      if (!isSealed(file, bytes)) refuse("is not sealed: the worker must add F_SEAL_SHRINK before it sends the path")
      mapFile(file, bytes, mode)
    } finally file.close()
  }

  /** Map an open file of `bytes` bytes that is never truncated. */
  private[ps] def mapFile(file: RandomAccessFile, bytes: Long, mode: FileChannel.MapMode): MappedSegment =
    new MappedSegment(DirectWindows.create(bytes)(file.getChannel.map(mode, _, _)))

  /**
   * Return true if memfd_create made the file. Opening a pipe may block forever, and a file on disk must not be
   * truncated.
   */
  private def isMemoryFile(path: Path): Boolean =
    Files.isRegularFile(path) && Files.readSymbolicLink(path).toString.startsWith("/memfd:")

  /**
   * Return true if the kernel refuses to truncate the file, because reading a truncated mapping raises SIGBUS in this
   * JVM. Java cannot read the seals, so this tries to truncate. A file that is not sealed is rejected, and its last
   * byte becomes 0.
   */
  private def isSealed(file: RandomAccessFile, bytes: Long): Boolean =
    try {
      file.setLength(bytes - 1)
      file.setLength(bytes)
      false
    } catch { case _: IOException => file.length == bytes }
}
