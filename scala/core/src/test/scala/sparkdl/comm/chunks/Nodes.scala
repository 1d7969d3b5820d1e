package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.nio.channels.ReadableByteChannel
import java.util.concurrent.{CompletableFuture, TimeUnit}

import scala.util.Random

import sparkdl.comm.{Clock, SystemClock}
import sparkdl.comm.transport.{Chunk, ChunkFailure, ChunkFetch, ChunkPeer, ChunkTarget, Chunks, DirectChunkTarget}

/** An executor of the tests. */
final class TestNode(
    val transport: TestTransport = new TestTransport,
    clock: Clock = SystemClock,
    partBytes: Int = Int.MaxValue
) {
  val kept = new Kept(partBytes)
  val node = new ChunkNode(transport, "127.0.0.1", "1", 0, 1, kept, clock)
}

/** Direct memory as a target, which counts the bytes that it read itself. */
final class DirectTarget(memory: ByteBuffer) extends DirectChunkTarget {
  @volatile var readDirectly = 0
  override def write(from: ByteBuffer): Unit = memory.put(from)
  override def read(from: ReadableByteChannel, atMost: Int): Int = {
    memory.limit(memory.position() + atMost)
    val count =
      try from.read(memory)
      finally memory.limit(memory.capacity)
    readDirectly += math.max(0, count)
    count
  }
}

/** A fetch into memory of its own. */
final class Fetched(
    chunks: Chunks,
    from: ChunkPeer,
    chunk: Chunk,
    deadline: Long = Fetched.soon,
    direct: Boolean = false
) {
  private val memory = if (direct) ByteBuffer.allocateDirect(chunk.length) else ByteBuffer.allocate(chunk.length)
  private val end = new CompletableFuture[Option[ChunkFailure]]
  private val directTarget = new DirectTarget(memory)
  private val target: ChunkTarget = if (direct) directTarget else piece => memory.put(piece)
  val fetch: ChunkFetch = chunks.fetch(from, chunk, target, deadline)(end.complete(_))

  /** Bytes that were read from the socket to the memory. */
  def readDirectly: Int = directTarget.readDirectly

  def isOver: Boolean = end.isDone
  def failure: Option[ChunkFailure] = end.get(30, TimeUnit.SECONDS)

  /** What came, once all is here. */
  def bytes: Seq[Byte] = {
    failure.foreach(throw _)
    val bytes = new Array[Byte](chunk.length)
    memory.clear().get(bytes)
    bytes.toSeq
  }

  /** Bytes that came. */
  def received: Int = memory.position()
}

object Fetched {
  def soon: Long = System.nanoTime + TimeUnit.SECONDS.toNanos(30)
}

object Nodes {
  def random(count: Int, seed: Int = 0): Array[Byte] = {
    val bytes = new Array[Byte](count)
    new Random(seed).nextBytes(bytes)
    bytes
  }

  /** Waits until `condition` holds, at most 30 s. */
  def eventually(what: String)(condition: => Boolean): Unit = {
    val end = System.nanoTime + TimeUnit.SECONDS.toNanos(30)
    while (!condition) {
      if (System.nanoTime > end) throw new AssertionError(s"not within 30 s: $what")
      Thread.sleep(5)
    }
  }

  /** Names of the threads that chunks have. */
  def threads: Seq[String] = {
    val all = new Array[Thread](Thread.activeCount * 2 + 100)
    val names = all.take(Thread.enumerate(all)).map(_.getName).toSeq
    names.filter(_.matches("sparkdl-(client|server|connect).*"))
  }

  /** Sockets of this JVM, and what it waits for them with. */
  def sockets: Int = new java.io.File("/proc/self/fd").listFiles.count { descriptor =>
    val target = scala.util.Try(java.nio.file.Files.readSymbolicLink(descriptor.toPath).toString)
    target.toOption.exists(_.matches("(socket|anon_inode):.*"))
  }
}
