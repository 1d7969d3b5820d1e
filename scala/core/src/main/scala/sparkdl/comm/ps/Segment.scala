// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.io.{IOException, RandomAccessFile}
import java.nio.{ByteBuffer, ByteOrder, FloatBuffer, IntBuffer, ShortBuffer}
import java.nio.channels.FileChannel
import java.nio.file.{Files, Path}
import java.util.concurrent.locks.ReentrantReadWriteLock

import sparkdl.comm.CommException

/**
 * Memory of one rank: its parameters, its gradients and its incoming and outgoing blocks, in native
 * byte order. Offsets and counts are in bytes unless stated otherwise.
 *
 * Reading memory that was freed would kill the JVM. Therefore every access runs inside [[access]],
 * and [[close]] waits until no access is in progress.
 *
 * @param windows direct buffers of [[Segment.WindowBytes]] each; the last one has the rest
 */
private[comm] final class Segment private (windows: Array[ByteBuffer]) {
  import Segment.{free, WindowBytes}

  private val lock = new ReentrantReadWriteLock
  private var open = true
  private val floats: Array[FloatBuffer] = windows.map(_.asFloatBuffer)
  private val ints: Array[IntBuffer] = windows.map(_.asIntBuffer)
  private val shorts: Array[ShortBuffer] = windows.map(_.asShortBuffer)

  val bytes: Long = windows.map(_.capacity.toLong).sum

  /**
   * Run `body` while the memory is certain to exist.
   *
   * @throws CommException if the segment is closed
   */
  def access[T](body: => T): T = {
    lock.readLock.lock()
    try {
      if (!open) throw new CommException(CommException.Closed, "the parameter segment was closed")
      body
    } finally lock.readLock.unlock()
  }

  /** Free the memory at once. Call it only when no views from [[slices]] are in use. */
  def close(): Unit = {
    lock.writeLock.lock()
    try
      if (open) {
        open = false
        windows.foreach(free)
      }
    finally lock.writeLock.unlock()
  }

  /**
   * Return views of `count` bytes at `offset`: more than one if one Java buffer cannot hold them.
   */
  def slices(offset: Long, count: Long): Array[ByteBuffer] = {
    check(offset, count)
    val parts = Array.newBuilder[ByteBuffer]
    forWindows(offset, count, 1)((window, at, length, _) =>
      parts += windows(window).slice(at, length)
    )
    parts.result()
  }

  /** Copy the rest of `from` to `offset`. */
  def put(offset: Long, from: ByteBuffer): Unit = {
    val begin = from.position()
    check(offset, from.remaining)
    forWindows(offset, from.remaining, 1)((window, at, length, done) =>
      windows(window).put(at, from, begin + done, length)
    )
    from.position(from.limit())
  }

  /** Copy `count` elements to or from the beginning of an array, as the next methods do. */
  def getFloats(offset: Long, to: Array[Float], count: Int): Unit = getFloats(offset, to, 0, count)
  def putFloats(offset: Long, from: Array[Float], count: Int): Unit =
    putFloats(offset, from, 0, count)

  /** Copy `count` elements to or from an array, from its element number `first` on. */
  def getFloats(offset: Long, to: Array[Float], first: Int, count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) =>
      floats(window).get(at, to, first + done, length)
    )
  }

  def putFloats(offset: Long, from: Array[Float], first: Int, count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) =>
      floats(window).put(at, from, first + done, length)
    )
  }

  /** Copy `count` elements as bits. */
  def getInts(offset: Long, to: Array[Int], count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) =>
      ints(window).get(at, to, done, length)
    )
  }

  def getShorts(offset: Long, to: Array[Short], count: Int): Unit = {
    check(offset, count * 2L)
    forWindows(offset, count, 2)((window, at, length, done) =>
      shorts(window).get(at, to, done, length)
    )
  }

  def putShorts(offset: Long, from: Array[Short], count: Int): Unit = {
    check(offset, count * 2L)
    forWindows(offset, count, 2)((window, at, length, done) =>
      shorts(window).put(at, from, done, length)
    )
  }

  def putLong(offset: Long, value: Long): Unit = {
    check(offset, 8)
    windows((offset / WindowBytes).toInt).putLong((offset % WindowBytes).toInt, value)
  }

  /** Copy `count` bytes within the segment. */
  def copy(from: Long, to: Long, count: Long): Unit = {
    var at = to
    slices(from, count).foreach { part =>
      val length = part.remaining
      put(at, part)
      at += length
    }
  }

  private def check(offset: Long, count: Long): Unit =
    if (offset < 0 || count < 0 || offset + count > bytes)
      throw new IndexOutOfBoundsException(
        s"$count bytes at $offset exceed a segment of $bytes bytes"
      )

  /**
   * Call `body(window, position, length, done)` for each piece; position, length and done count
   * units of `unit` bytes.
   */
  private def forWindows(
      offset: Long,
      count: Long,
      unit: Int
  )(body: (Int, Int, Int, Int) => Unit): Unit = {
    var done = 0L
    while (done < count) {
      val position = offset + done * unit
      val at = position % WindowBytes
      val length = math.min(count - done, (WindowBytes - at) / unit)
      body((position / WindowBytes).toInt, (at / unit).toInt, length.toInt, done.toInt)
      done += length
    }
  }
}

private[comm] object Segment {

  /** Bytes of a window. A Java buffer holds less than 2 GiB. */
  private val WindowBytes: Long = 1L << 30

  /**
   * Allocate `bytes` bytes of zeros for a rank that runs in this JVM. They count against its
   * -XX:MaxDirectMemorySize. No other process sees them, so other ranks fetch what this rank
   * publishes.
   */
  def allocate(bytes: Long): Segment =
    new Segment(makeWindows(bytes)((_, count) => ByteBuffer.allocateDirect(count.toInt)))

  /**
   * Map the memory of a Python worker, the `bytes` bytes behind `path`, for reading and writing. It
   * has no name in any file system. The worker made it with memfd_create and keeps it open while
   * this JVM maps it through /proc. So the kernel frees it once both processes are gone, even after
   * a crash.
   *
   * @throws CommException if the path is not a worker's open memory file, has another size, or can
   *    be truncated
   * @throws java.io.IOException if it cannot be opened
   */
  def map(path: String, bytes: Long): Segment = map(path, bytes, FileChannel.MapMode.READ_WRITE)

  /**
   * Map the `bytes` bytes behind `path` for reading. A write to them throws a
   * ReadOnlyBufferException.
   */
  def read(path: String, bytes: Long): Segment = map(path, bytes, FileChannel.MapMode.READ_ONLY)

  private def map(path: String, bytes: Long, mode: FileChannel.MapMode): Segment = {
    def refuse(why: String): Nothing =
      throw new CommException(CommException.Protocol, s"segment $path $why")
    if (!path.matches("/proc/[0-9]+/fd/[0-9]+"))
      refuse("is not a path of a worker: expected /proc/PID/fd/N")
    if (!isMemoryFile(Path.of(path))) refuse("is not a memory file: expected one of memfd_create")
    val file = new RandomAccessFile(path, "rw")
    try {
      if (file.length != bytes) refuse(s"has ${file.length} bytes: expected $bytes")
      if (!isSealed(file, bytes))
        refuse("is not sealed: the worker must add F_SEAL_SHRINK before it sends the path")
      mapFile(file, bytes, mode)
    } finally file.close()
  }

  /** Map an open file of `bytes` bytes that is never truncated. */
  private[ps] def mapFile(file: RandomAccessFile, bytes: Long, mode: FileChannel.MapMode): Segment =
    new Segment(makeWindows(bytes)(file.getChannel.map(mode, _, _)))

  /**
   * Return true if memfd_create made the file. Opening a pipe may block forever, and a file on disk
   * must not be truncated.
   */
  private def isMemoryFile(path: Path): Boolean =
    Files.isRegularFile(path) && Files.readSymbolicLink(path).toString.startsWith("/memfd:")

  /**
   * Return true if the kernel refuses to truncate the file, because reading a truncated mapping
   * raises SIGBUS in this JVM. Java cannot read the seals, so this tries to truncate. A file that
   * is not sealed is rejected, and its last byte becomes 0.
   */
  private def isSealed(file: RandomAccessFile, bytes: Long): Boolean =
    try {
      file.setLength(bytes - 1)
      file.setLength(bytes)
      false
    } catch { case _: IOException => file.length == bytes }

  /**
   * Make windows of `bytes` bytes in all. `make` gets the first byte of a window and its number of
   * bytes.
   */
  private def makeWindows(bytes: Long)(make: (Long, Long) => ByteBuffer): Array[ByteBuffer] =
    (0L until bytes by WindowBytes).map { begin =>
      make(begin, math.min(WindowBytes, bytes - begin)).order(ByteOrder.nativeOrder)
    }.toArray

  /** Free the memory at once. The garbage collector would free it at some later time. */
  private def free(window: ByteBuffer): Unit = unsafe.invokeCleaner(window)

  private lazy val unsafe = {
    val field = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    field.setAccessible(true)
    field.get(null).asInstanceOf[sun.misc.Unsafe]
  }
}
