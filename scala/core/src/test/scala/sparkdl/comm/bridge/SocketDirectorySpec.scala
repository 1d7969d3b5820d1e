package sparkdl.comm.bridge

import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.channels.ServerSocketChannel
import java.nio.file.{Files, Path, Paths}
import java.nio.file.attribute.FileTime

import org.scalatest.funsuite.AnyFunSuite

class SocketDirectorySpec extends AnyFunSuite {
  private def listen(directory: Path): ServerSocketChannel =
    ServerSocketChannel
      .open(StandardProtocolFamily.UNIX)
      .bind(UnixDomainSocketAddress.of(directory.resolve(SocketDirectory.SocketName)))

  private def growOld(directory: Path): Unit =
    Files.setLastModifiedTime(directory, FileTime.fromMillis(System.currentTimeMillis - 3600 * 1000))

  test("only sockets that are old and that nobody answers are swept away") {
    val parent = Files.createTempDirectory("swept")
    val Seq(dead, alive, young, foreign) = Seq.fill(4)(SocketDirectory.create(parent))
    listen(dead).close()
    val listener = listen(alive)
    listen(young).close()
    Seq(dead, alive, foreign).foreach(growOld)
    try {
      SocketDirectory.sweep(parent)
      assert(!Files.exists(dead))
      Seq(alive, young, foreign).foreach(directory => assert(Files.exists(directory)))
    } finally listener.close()
  }

  test("a temporary directory with a long name is not used for sockets") {
    assert(SocketDirectory.parent("/var/tmp") === Paths.get("/var/tmp"))
    assert(SocketDirectory.parent("/var/" + "x" * 100) === Paths.get("/tmp"))
  }
}
