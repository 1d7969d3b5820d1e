// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer
import java.nio.channels.ReadableByteChannel
import java.util.concurrent.{CompletableFuture, TimeUnit}

import scala.util.Random

import sparkdl.comm.{Clock, SystemClock}
import sparkdl.comm.transport.{
  Chunk,
  ChunkFailure,
  ChunkFetch,
  ChunkPeer,
  ChunkTarget,
  Chunks,
  DirectChunkTarget
}

/** Executor of the tests. */
final class TestNode(
    val transport: TestTransport = new TestTransport,
    clock: Clock = SystemClock,
    partBytes: Int = Int.MaxValue
) {
  val receiver = new RecordingReceiver(partBytes)
  val node = new ChunkNode(transport, "127.0.0.1", "1", 0, 1, receiver, clock)
}

/** Target in direct memory, with a count of the bytes that it read from the socket. */
final class DirectTarget(memory: ByteBuffer) extends DirectChunkTarget {
  @volatile var readDirectly = 0
  override def write(from: ByteBuffer): Unit = memory.put(from)
  override def read(from: ReadableByteChannel, maxCount: Int): Int = {
    memory.limit(memory.position() + maxCount)
    val count =
      try from.read(memory)
      finally memory.limit(memory.capacity)
    readDirectly += math.max(0, count)
    count
  }
}

/** Fetch into its own memory. */
final class TestFetch(
    chunks: Chunks,
    from: ChunkPeer,
    chunk: Chunk,
    deadline: Long = TestFetch.soon,
    direct: Boolean = false
) {
  private val memory =
    if (direct) ByteBuffer.allocateDirect(chunk.length) else ByteBuffer.allocate(chunk.length)
  private val end = new CompletableFuture[Option[ChunkFailure]]
  private val directTarget = new DirectTarget(memory)
  private val target: ChunkTarget = if (direct) directTarget else piece => memory.put(piece)
  val fetch: ChunkFetch = chunks.fetch(from, chunk, target, deadline)(end.complete(_))

  /** Bytes that were read from the socket directly into the memory. */
  def readDirectly: Int = directTarget.readDirectly

  def isOver: Boolean = end.isDone
  def failure: Option[ChunkFailure] = end.get(30, TimeUnit.SECONDS)

  /** Return the bytes, once all have arrived. */
  def bytes: Seq[Byte] = {
    failure.foreach(throw _)
    val bytes = new Array[Byte](chunk.length)
    memory.clear().get(bytes)
    bytes.toSeq
  }

  /** Bytes that have arrived. */
  def received: Int = memory.position()
}

object TestFetch {
  def soon: Long = System.nanoTime + TimeUnit.SECONDS.toNanos(30)
}

object Nodes {
  def random(count: Int, seed: Int = 0): Array[Byte] = {
    val bytes = new Array[Byte](count)
    new Random(seed).nextBytes(bytes)
    bytes
  }

  /** Wait until `condition` holds, at most 30 s. */
  def eventually(what: String)(condition: => Boolean): Unit = {
    val end = System.nanoTime + TimeUnit.SECONDS.toNanos(30)
    while (!condition) {
      if (System.nanoTime > end) throw new AssertionError(s"not within 30 s: $what")
      Thread.sleep(5)
    }
  }

  /** Names of the network's threads. */
  def threads: Seq[String] = {
    val all = new Array[Thread](Thread.activeCount * 2 + 100)
    val names = all.take(Thread.enumerate(all)).map(_.getName).toSeq
    names.filter(_.matches("sparkdl-(client|server|connect).*"))
  }

  /** Number of this JVM's sockets and of the descriptors that it polls them with. */
  def sockets: Int = new java.io.File("/proc/self/fd").listFiles.count { descriptor =>
    val target = scala.util.Try(java.nio.file.Files.readSymbolicLink(descriptor.toPath).toString)
    target.toOption.exists(_.matches("(socket|anon_inode):.*"))
  }
}
