package sparkdl.comm.ps

import java.nio.{ByteBuffer, FloatBuffer, IntBuffer, ShortBuffer}
import java.util.concurrent.locks.ReentrantReadWriteLock

import sparkdl.comm.CommException

/**
 * Memory of one rank: its parameters, its gradients and its incoming and outgoing blocks. Offsets and counts are in
 * bytes unless stated otherwise.
 *
 * Reading memory that was freed would kill the JVM. Therefore every access runs inside [[access]], and [[close]] waits
 * until no access is in progress.
 */
private[comm] trait Segment {
  def bytes: Long

  /**
   * Run `body` while the memory is certain to exist.
   *
   * @throws CommException if the segment is closed
   */
  def access[T](body: => T): T

  /** Return views of `count` bytes at `offset`: more than one if one Java buffer cannot hold them. */
  def slices(offset: Long, count: Long): Array[ByteBuffer]

  /** Copy the rest of `from` to `offset`. */
  def put(offset: Long, from: ByteBuffer): Unit

  /** Copy `count` elements to or from the beginning of an array, as the next methods do. */
  def getFloats(offset: Long, to: Array[Float], count: Int): Unit = getFloats(offset, to, 0, count)
  def putFloats(offset: Long, from: Array[Float], count: Int): Unit = putFloats(offset, from, 0, count)

  /** Copy `count` elements to or from an array, from its element number `first` on. */
  def getFloats(offset: Long, to: Array[Float], first: Int, count: Int): Unit
  def putFloats(offset: Long, from: Array[Float], first: Int, count: Int): Unit

  /** Copy `count` elements as bits. */
  def getInts(offset: Long, to: Array[Int], count: Int): Unit
  def getShorts(offset: Long, to: Array[Short], count: Int): Unit
  def putShorts(offset: Long, from: Array[Short], count: Int): Unit
  def putLong(offset: Long, value: Long): Unit

  /** Copy `count` bytes within the segment. */
  def copy(from: Long, to: Long, count: Long): Unit

  /** Free the memory at once. Call it only when no views from [[slices]] are in use. */
  def close(): Unit
}

/**
 * Segment of buffers, in native byte order.
 *
 * @param windows buffers of `windowBytes` each, a multiple of 8; the last one has the rest
 */
private[comm] abstract class BufferSegment(windows: Array[ByteBuffer], windowBytes: Long) extends Segment {
  private val lock = new ReentrantReadWriteLock
  private var open = true
  private val floats: Array[FloatBuffer] = windows.map(_.asFloatBuffer)
  private val ints: Array[IntBuffer] = windows.map(_.asIntBuffer)
  private val shorts: Array[ShortBuffer] = windows.map(_.asShortBuffer)

  override val bytes: Long = windows.map(_.capacity.toLong).sum

  /** Free the memory; called once. */
  protected def release(): Unit

  override def access[T](body: => T): T = {
    lock.readLock.lock()
    try {
      if (!open) throw new CommException(CommException.Closed, "the parameter segment was closed")
      body
    } finally lock.readLock.unlock()
  }

  override def close(): Unit = {
    lock.writeLock.lock()
    try
      if (open) {
        open = false
        release()
      }
    finally lock.writeLock.unlock()
  }

  override def slices(offset: Long, count: Long): Array[ByteBuffer] = {
    check(offset, count)
    val parts = Array.newBuilder[ByteBuffer]
    forWindows(offset, count, 1)((window, at, length, _) => parts += windows(window).slice(at, length))
    parts.result()
  }

  override def put(offset: Long, from: ByteBuffer): Unit = {
    val begin = from.position()
    check(offset, from.remaining)
    forWindows(offset, from.remaining, 1)((window, at, length, done) =>
      windows(window).put(at, from, begin + done, length)
    )
    from.position(from.limit())
  }

  override def getFloats(offset: Long, to: Array[Float], first: Int, count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) => floats(window).get(at, to, first + done, length))
  }

  override def putFloats(offset: Long, from: Array[Float], first: Int, count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) => floats(window).put(at, from, first + done, length))
  }

  override def getInts(offset: Long, to: Array[Int], count: Int): Unit = {
    check(offset, count * 4L)
    forWindows(offset, count, 4)((window, at, length, done) => ints(window).get(at, to, done, length))
  }

  override def getShorts(offset: Long, to: Array[Short], count: Int): Unit = {
    check(offset, count * 2L)
    forWindows(offset, count, 2)((window, at, length, done) => shorts(window).get(at, to, done, length))
  }

  override def putShorts(offset: Long, from: Array[Short], count: Int): Unit = {
    check(offset, count * 2L)
    forWindows(offset, count, 2)((window, at, length, done) => shorts(window).put(at, from, done, length))
  }

  override def putLong(offset: Long, value: Long): Unit = {
    check(offset, 8)
    windows((offset / windowBytes).toInt).putLong((offset % windowBytes).toInt, value)
  }

  override def copy(from: Long, to: Long, count: Long): Unit = {
    var at = to
    slices(from, count).foreach { part =>
      val length = part.remaining
      put(at, part)
      at += length
    }
  }

  private def check(offset: Long, count: Long): Unit =
    if (offset < 0 || count < 0 || offset + count > bytes)
      throw new IndexOutOfBoundsException(s"$count bytes at $offset exceed a segment of $bytes bytes")

  /**
   * Call `body(window, position, length, done)` for each piece; position, length and done count units of `unit` bytes.
   */
  private def forWindows(offset: Long, count: Long, unit: Int)(body: (Int, Int, Int, Int) => Unit): Unit = {
    var done = 0L
    while (done < count) {
      val position = offset + done * unit
      val at = position % windowBytes
      val length = math.min(count - done, (windowBytes - at) / unit)
      body((position / windowBytes).toInt, (at / unit).toInt, length.toInt, done.toInt)
      done += length
    }
  }
}
