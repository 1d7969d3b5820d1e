package sparkdl.comm.ps

import java.io.RandomAccessFile
import java.nio.{ByteBuffer, ByteOrder, FloatBuffer, MappedByteBuffer, ShortBuffer}
import java.nio.channels.FileChannel
import java.util.concurrent.locks.ReentrantReadWriteLock

import sparkdl.comm.CommException

/**
 * Memory that this JVM and one Python worker both map. It has no name in any file system: the worker made it with
 * memfd_create and keeps it open while this side maps it through /proc, so the kernel frees it when both are gone, however
 * they went.
 *
 * Unmapping under a reader's feet would kill the JVM, therefore every access from here runs inside [[access]], and
 * [[close]] waits for those that are under way.
 */
final class Segment private (windows: Array[MappedByteBuffer], val bytes: Long) {
  import Segment.WindowBytes

  private val lock = new ReentrantReadWriteLock
  private var open = true
  private val floats: Array[FloatBuffer] = windows.map(_.asFloatBuffer)
  private val shorts: Array[ShortBuffer] = windows.map(_.asShortBuffer)

  /** Runs `body` while the mapping is certain to exist. */
  def access[T](body: => T): T = {
    lock.readLock.lock()
    try {
      if (!open) throw new CommException("Closed", "the parameter segment was closed")
      body
    } finally lock.readLock.unlock()
  }

  /** Views of `count` bytes at `offset`: more than one where they cross a window of the mapping. */
  def slices(offset: Long, count: Long): Array[ByteBuffer] = {
    check(offset, count)
    val parts = Array.newBuilder[ByteBuffer]
    forWindows(offset, count, 1)((window, at, length, _) => parts += windows(window).slice(at, length))
    parts.result()
  }

  /** Copies the rest of `from` to `offset`. */
  def put(offset: Long, from: ByteBuffer): Unit = {
    val begin = from.position()
    check(offset, from.remaining)
    forWindows(offset, from.remaining, 1)((window, at, length, done) =>
      windows(window).put(at, from, begin + done, length)
    )
    from.position(from.limit())
  }

  def getFloats(offset: Long, to: Array[Float], count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) => floats(window).get(at, to, done, length))
  }

  def putFloats(offset: Long, from: Array[Float], count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) => floats(window).put(at, from, done, length))
  }

  def getShorts(offset: Long, to: Array[Short], count: Int): Unit = {
    check(offset, count * 2L)
    forWindows(offset, count, 2)((window, at, length, done) => shorts(window).get(at, to, done, length))
  }

  def putShorts(offset: Long, from: Array[Short], count: Int): Unit = {
    check(offset, count * 2L)
    forWindows(offset, count, 2)((window, at, length, done) => shorts(window).put(at, from, done, length))
  }

  def putLong(offset: Long, value: Long): Unit = {
    check(offset, 8)
    windows((offset / WindowBytes).toInt).putLong((offset % WindowBytes).toInt, value)
  }

  def copy(from: Long, to: Long, count: Long): Unit = {
    var at = to
    slices(from, count).foreach { part =>
      val length = part.remaining
      put(at, part)
      at += length
    }
  }

  /** Unmaps at once; call it only when nobody else holds views from [[slices]]. Otherwise dropping the object is enough. */
  def close(): Unit = {
    lock.writeLock.lock()
    try
      if (open) {
        open = false
        windows.foreach(Segment.unmap)
      }
    finally lock.writeLock.unlock()
  }

  private def check(offset: Long, count: Long): Unit =
    if (offset < 0 || count < 0 || offset + count > bytes)
      throw new IndexOutOfBoundsException(s"$count bytes at $offset of a segment of $bytes bytes")

  /** Calls `body(window, position, length, done)` for each piece; position, length and done count units of `unit` bytes. */
  private def forWindows(offset: Long, count: Long, unit: Int)(body: (Int, Int, Int, Int) => Unit): Unit = {
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

object Segment {

  /** A Java buffer holds less than 2 GiB. */
  private val WindowBytes = 1L << 30

  /**
   * Maps the `bytes` bytes behind `path`.
   *
   * @throws CommException if the path is no worker's open memory file, or is smaller than agreed
   */
  def map(path: String, bytes: Long): Segment = {
    if (!path.matches("/proc/[0-9]+/fd/[0-9]+"))
      throw new CommException("Protocol", s"segment path $path: expected a worker's /proc/PID/fd/N")
    val file = new RandomAccessFile(path, "rw")
    try {
      if (file.length != bytes)
        throw new CommException("Protocol", s"segment $path has ${file.length} bytes, agreed were $bytes")
      val windows = (0L until bytes by WindowBytes).map { begin =>
        val window =
          file.getChannel.map(FileChannel.MapMode.READ_WRITE, begin, math.min(WindowBytes, bytes - begin))
        window.order(ByteOrder.nativeOrder)
        window
      }
      new Segment(windows.toArray, bytes)
    } finally file.close()
  }

  private lazy val unsafe = {
    val field = Class.forName("sun.misc.Unsafe").getDeclaredField("theUnsafe")
    field.setAccessible(true)
    field.get(null).asInstanceOf[sun.misc.Unsafe]
  }

  private def unmap(window: MappedByteBuffer): Unit = unsafe.invokeCleaner(window)
}
