package sparkdl.comm.ps

import java.io.{IOException, RandomAccessFile}
import java.nio.{ByteBuffer, MappedByteBuffer}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path}

import sparkdl.comm.CommException

/**
 * Memory of one Python worker that this JVM maps too. It has no name in any file system: the worker made it with
 * memfd_create and keeps it open while this side maps it through /proc, so the kernel frees it when both are gone, however
 * they went.
 */
private[comm] final class MappedSegment private (windows: Array[MappedByteBuffer])
    extends BufferSegment(windows.map(window => window: ByteBuffer), DirectWindows.Bytes) {
  override protected def release(): Unit = windows.foreach(DirectWindows.free)
}

private[comm] object MappedSegment {

  /**
   * Maps the `bytes` bytes behind `path`.
   *
   * @throws CommException if the path is no worker's open memory file, if that has another size than was agreed, or if it could be
   *   cut
   * @throws java.io.IOException if it cannot be opened
   */
  def map(path: String, bytes: Long): MappedSegment = map(path, bytes, FileChannel.MapMode.READ_WRITE)

  /** Likewise, only to be read: what writes to it throws a ReadOnlyBufferException. */
  def read(path: String, bytes: Long): MappedSegment = map(path, bytes, FileChannel.MapMode.READ_ONLY)

  private def map(path: String, bytes: Long, mode: FileChannel.MapMode): MappedSegment = {
    def refuse(why: String): Nothing = throw new CommException(CommException.Protocol, s"segment $path $why")
    if (!path.matches("/proc/[0-9]+/fd/[0-9]+")) refuse("is no path of a worker: expected /proc/PID/fd/N")
    if (!isMemoryFile(Path.of(path))) refuse("is no memory file: expected one of memfd_create")
    val file = new RandomAccessFile(path, "rw")
    try {
      if (file.length != bytes) refuse(s"has ${file.length} bytes, agreed were $bytes")
      if (!isSealed(file, bytes)) refuse("is not sealed: the worker must add F_SEAL_SHRINK before it says where it is")
      of(file, bytes, mode)
    } finally file.close()
  }

  /** Map an open file of `bytes` bytes, which nobody cuts. */
  private[ps] def of(file: RandomAccessFile, bytes: Long, mode: FileChannel.MapMode): MappedSegment =
    new MappedSegment(DirectWindows.of(bytes)(file.getChannel.map(mode, _, _)))

  /** Say whether memfd_create made the file. To open a pipe may take for ever, and a file on disk must not be cut. */
  private def isMemoryFile(path: Path): Boolean =
    Files.isRegularFile(path) && Files.readSymbolicLink(path).toString.startsWith("/memfd:")

  /**
   * Say whether the kernel refuses to cut the file: this JVM would die of reading a mapping without memory behind it. Java cannot
   * ask for the seals, so it tries to cut. A file that lets it is refused; its last byte becomes 0.
   */
  private def isSealed(file: RandomAccessFile, bytes: Long): Boolean =
    try {
      file.setLength(bytes - 1)
      file.setLength(bytes)
      false
    } catch { case _: IOException => file.length == bytes }
}
