package sparkdl.comm.ps

import java.io.RandomAccessFile
import java.nio.channels.FileChannel.MapMode
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._
import scala.util.Random

/**
 * Memory of one process as ranks have it, which others of its host map: `values`, and room for a copy and for an encoding of
 * as many. What is done to it here is what ranks do; the benchmark only times it.
 */
final class BenchMemory(values: Array[Float]) extends AutoCloseable {
  import BenchMemory._

  private val count = values.length
  private val shape = new ShardLayout(IndexedSeq(count.toLong), 1).wholeBlock(0)
  private val copied = 4L * count
  private val encoded = 2 * copied

  // It plays the worker's memory file: in memory, and without a name.
  private val name = Files.createTempFile(Path.of("/dev/shm"), "sparkdl-bench", ".segment")
  private val file = new RandomAccessFile(name.toFile, "rw")
  file.setLength(bytesOf(count))

  /** Where others find it. */
  val path: String = {
    val descriptors = Files.newDirectoryStream(Path.of(s"/proc/${ProcessHandle.current.pid}/fd"))
    try descriptors.asScala.find(link => Files.exists(link) && Files.isSameFile(link, name)).get.toString
    finally descriptors.close()
  }
  Files.delete(name)
  private val segment = MappedSegment.of(file, bytesOf(count), MapMode.READ_WRITE)
  segment.putFloats(0, values, count)

  /** Of the values. */
  def copy(): Unit = segment.copy(0, copied, copied)

  /** Of the values of another process of this host. */
  def copyFrom(neighbour: BenchNeighbour): Unit = {
    var at = copied
    neighbour.segment.slices(0, copied).foreach { part =>
      val length = part.remaining
      segment.put(at, part)
      at += length
    }
  }

  def encode(wire: String): Unit = BlockEncoding(wire).encode(segment, _.start * 4, shape, encoded)

  /** To the place of the copy. */
  def decode(wire: String): Unit = BlockEncoding(wire).decode(segment, encoded, shape.ranges, copied + _.start * 4)

  /**
   * Whether the copy is of these numbers, which is wiped out then.
   *
   * @param within the most that it may be off, as a share of a number, or of what is usual where that is more
   */
  def isCopyOf(numbers: Array[Float], within: Double): Boolean = {
    val found = new Array[Float](count)
    segment.getFloats(copied, found, count)
    segment.putFloats(copied, new Array[Float](count), count)
    found.indices.forall(i => math.abs(found(i) - numbers(i)) <= within * math.max(math.abs(numbers(i)), Deviation))
  }

  override def close(): Unit = {
    segment.close()
    file.close()
  }
}

object BenchMemory {

  /** Of gradients, say: some are normal numbers of 16 bits, and some are not. */
  private val Deviation = 1e-4

  def draw(count: Int, seed: Int): Array[Float] = {
    val random = new Random(seed)
    Array.fill(count)((random.nextGaussian() * Deviation).toFloat)
  }

  private def bytesOf(count: Int): Long = 10L * count

  /** The memory of `count` numbers that a process of this host has at `path`. */
  def neighbour(path: String, count: Int): BenchNeighbour = {
    val file = new RandomAccessFile(path, "r")
    try new BenchNeighbour(MappedSegment.of(file, bytesOf(count), MapMode.READ_ONLY))
    finally file.close()
  }
}

final class BenchNeighbour(private[ps] val segment: Segment) extends AutoCloseable {
  override def close(): Unit = segment.close()
}
