<#
.SYNOPSIS
Settles on a real Windows node what could be proven under Wine or on paper only (docs/landing.md has the table).

.DESCRIPTION
Works in a directory of its own and removes it at the end; the kubelet's own file is only read. Run it as Administrator,
in Windows PowerShell 5.1 or later, on the kind of node that is to be served. Each line says what was tried, what was
expected and what came out; the exit code is the number of lines that differ.

.PARAMETER Program
courier-node.exe: GOOS=windows go build -trimpath -ldflags "-s -w" ./cmd/courier-node

.PARAMETER Loader
Optional: the kubelet's own file loader as a program: GOOS=windows go build ./test/wine/loader

.PARAMETER Kubelet
Optional: address of the node's kubelet, as 127.0.0.1:10250, to read its list of CAs.

.PARAMETER ClientCAFile
Optional, with -Kubelet: the file that this kubelet uses.

.PARAMETER DiskFull
Also makes and mounts a small virtual disk to fill.

.EXAMPLE
.\verify-windows.ps1 -Program .\courier-node.exe -Loader .\loader.exe -Kubelet 127.0.0.1:10250 -ClientCAFile C:\k\kubelet-ca.crt
#>
[CmdletBinding()]
param(
    [Parameter(Mandatory)] [string] $Program,
    [string] $Loader,
    [string] $Kubelet,
    [string] $ClientCAFile,
    [switch] $DiskFull
)
Set-StrictMode -Version 1.0
$ErrorActionPreference = 'Stop'

$Program = (Resolve-Path $Program).Path
$root = Join-Path $env:SystemDrive ('\courier-verify-' + [Guid]::NewGuid().ToString('N').Substring(0, 8))
$script:different = 0

function Report([string] $what, $want, $got) {
    $verdict = 'as expected'
    if ("$want" -ne "$got") { $verdict = "DIFFERENT, expected $want"; $script:different++ }
    '{0,-72} {1}  {2}' -f $what, $got, $verdict
}

# A CA certificate as PEM; no certificate store is touched.
function New-Authority([string] $name) {
    $key = [Security.Cryptography.ECDsa]::Create([Security.Cryptography.ECCurve]::CreateFromFriendlyName('nistP256'))
    $request = [Security.Cryptography.X509Certificates.CertificateRequest]::new("CN=$name", $key, 'SHA256')
    $request.CertificateExtensions.Add(
        [Security.Cryptography.X509Certificates.X509BasicConstraintsExtension]::new($true, $false, 0, $true))
    $request.CertificateExtensions.Add(
        [Security.Cryptography.X509Certificates.X509KeyUsageExtension]::new('KeyCertSign', $true))
    $certificate = $request.CreateSelfSigned([DateTimeOffset]::UtcNow.AddHours(-1), [DateTimeOffset]::UtcNow.AddDays(1))
    $base64 = [Convert]::ToBase64String($certificate.RawData)
    $lines = for ($i = 0; $i -lt $base64.Length; $i += 64) { $base64.Substring($i, [Math]::Min(64, $base64.Length - $i)) }
    "-----BEGIN CERTIFICATE-----`n" + ($lines -join "`n") + "`n-----END CERTIFICATE-----`n"
}

# Runs the landing and returns its result, with the exit code in it.
function Invoke-Landing([string] $source, [string] $destination, [string[]] $more = @()) {
    $ErrorActionPreference = 'Continue' # or what the program says on standard error would end the script
    $sum = (Get-FileHash -Algorithm SHA256 $source).Hash
    $line = & $Program --source $source --sha256 $sum --destination $destination --patience 1s @more 2>$null
    $result = $line | ConvertFrom-Json
    if ($result.code -ne $LASTEXITCODE) { throw "exit code $LASTEXITCODE, but the result says $($result.code)" }
    $result
}

# The entries of a file's DACL.
function Get-Entries([string] $file) { (Get-Acl $file).Sddl -replace '^.*?D:[A-Z]*', '' }

function New-Place([string] $name) { (New-Item -ItemType Directory -Force (Join-Path $root $name)).FullName }

try {
    $null = New-Item -ItemType Directory $root
    $old = Join-Path $root 'old.pem'; $new = Join-Path $root 'new.pem'
    [IO.File]::WriteAllText($old, (New-Authority 'old'))
    [IO.File]::WriteAllText($new, (New-Authority 'new') + (New-Authority 'newer'))
    "$([Environment]::OSVersion.VersionString), $((Get-Volume -DriveLetter $env:SystemDrive[0]).FileSystemType)"

    # Permissions.
    $file = Join-Path (New-Place 'permissions') 'ca.crt'
    Report 'a new file: outcome' 'created' (Invoke-Landing $old $file).outcome
    Report 'a new file: DACL' '(A;;FA;;;SY)(A;;FA;;;BA)' (Get-Entries $file)
    $acl = Get-Acl $file
    $acl.SetAccessRuleProtection($false, $false)
    $acl.AddAccessRule([Security.AccessControl.FileSystemAccessRule]::new(
        [Security.Principal.SecurityIdentifier]::new('S-1-5-32-545'), 'Read', 'Allow'))
    Set-Acl $file $acl
    $before = Get-Entries $file
    Report 'a replaced file: outcome' 'replaced' (Invoke-Landing $new $file).outcome
    Report 'a replaced file: DACL as before' $before (Get-Entries $file)
    Report 'nothing to do: outcome' 'unchanged' (Invoke-Landing $new $file).outcome
    Report 'nothing to do: under 100 ms (best of 5)' $true `
        ((1..5 | ForEach-Object { (Measure-Command { Invoke-Landing $new $file }).TotalMilliseconds } |
            Measure-Object -Minimum).Minimum -lt 100)
    icacls (Split-Path $file) /grant '*S-1-5-32-545:(W)' | Out-Null
    Report 'a directory that users can write to is reported' 1 @((Invoke-Landing $new $file).warnings).Count

    # Another process holds the file open. Deletion shared is what lets a rename of POSIX semantics through.
    foreach ($share in 'None', 'Read', 'Write', 'ReadWrite', 'Delete', 'Read, Delete', 'ReadWrite, Delete') {
        $file = Join-Path (New-Place "held $share") 'ca.crt'
        Copy-Item $old $file
        $handle = [IO.File]::Open($file, 'Open', 'Read', $share)
        $want = if ($share -match 'Delete' -and $share -match 'Read') { 0 } else { 6 }
        try { Report "held open, sharing $share" $want (Invoke-Landing $new $file).code } finally { $handle.Dispose() }
        Report "held open, sharing $share, then released" 0 (Invoke-Landing $new $file).code
    }

    # What is no place for the file.
    $place = New-Place 'places'
    Copy-Item $old (Join-Path $place 'target.crt')
    $null = New-Item -ItemType SymbolicLink -Path (Join-Path $place 'link.crt') -Target (Join-Path $place 'target.crt')
    Report 'a symbolic link' 5 (Invoke-Landing $new (Join-Path $place 'link.crt')).code
    $null = New-Item -ItemType Junction -Path (Join-Path $root 'junction') -Target $place
    Report 'a directory that is a junction' 5 (Invoke-Landing $new (Join-Path $root 'junction\ca.crt')).code
    Report 'a directory' 5 (Invoke-Landing $new $place).code
    Report 'no drive' 5 (Invoke-Landing $new '\k\ca.crt').code
    Set-ItemProperty (Join-Path $place 'target.crt') IsReadOnly $true
    Report 'read-only' 7 (Invoke-Landing $new (Join-Path $place 'target.crt')).code
    Set-ItemProperty (Join-Path $place 'target.crt') IsReadOnly $false

    # Names.
    Report 'spaces and letters beyond ASCII' 0 (Invoke-Landing $new (Join-Path $place "kubelet ca $([char]0x9375).crt")).code
    $long = $root + ('\' + 'd' * 100) * 3 + '\ca.crt'
    Report 'a path of more than 260 characters' 0 (Invoke-Landing $new $long @('--create-parent')).code

    # A reader sees one whole version or the other.
    $file = Join-Path (New-Place 'reader') 'ca.crt'
    Copy-Item $old $file
    $reader = Start-Job -ArgumentList $file, @((Get-FileHash $old).Hash, (Get-FileHash $new).Hash) -ScriptBlock {
        param($file, $versions)
        $bad = 0
        while (-not (Test-Path "$file.stop")) {
            try { $handle = [IO.File]::Open($file, 'Open', 'Read', 'ReadWrite, Delete') } catch { continue }
            try { if ($versions -notcontains (Get-FileHash -InputStream $handle).Hash) { $bad++ } } finally { $handle.Dispose() }
        }
        $bad
    }
    $failed = 0
    foreach ($i in 1..1000) { if ((Invoke-Landing @($old, $new)[$i % 2] $file).code -ne 0) { $failed++ } }
    $null = New-Item "$file.stop"
    Report '1,000 replacements under a reader: failed' 0 $failed
    Report '1,000 replacements under a reader: reads of neither version' 0 (Receive-Job -Wait -AutoRemoveJob $reader)

    # Does a rename alone reach the kubelet's loader? Either answer is fine; the landing must reach it every time.
    if ($Loader) {
        $file = Join-Path (New-Place 'loader') 'ca.crt'
        Copy-Item $old $file
        $start = [Diagnostics.ProcessStartInfo]::new((Resolve-Path $Loader).Path, "`"$file`"")
        $start.UseShellExecute = $false; $start.RedirectStandardInput = $true; $start.RedirectStandardOutput = $true
        $kubelet = [Diagnostics.Process]::Start($start)
        $null = $kubelet.StandardOutput.ReadLine()
        $line = $kubelet.StandardOutput.ReadLineAsync()
        Start-Sleep -Seconds 2 # the loader says nothing of when its watch begins
        $seen = 0
        foreach ($i in 1..100) {
            $source = @($old, $new)[$i % 2]
            $null = Invoke-Landing $source $file
            $clock = [Diagnostics.Stopwatch]::StartNew()
            while ($clock.ElapsedMilliseconds -lt 1000) {
                if (-not $line.Wait(1000 - $clock.ElapsedMilliseconds)) { break }
                $got = $line.Result; $line = $kubelet.StandardOutput.ReadLineAsync()
                if ($got -eq (Get-FileHash $source).Hash) { $seen++; break }
            }
        }
        Report 'landings that the kubelet''s loader saw within a second' 100 $seen
        Start-Sleep -Seconds 2
        Copy-Item $new "$file.renamed"
        Move-Item -Force "$file.renamed" $file
        $answer = if ($line.Wait(5000)) { 'wakes the loader' } else { 'does not wake the loader' }
        "for the record: a rename alone $answer here"
        $kubelet.StandardInput.Close()
        $kubelet.WaitForExit()
    }

    # The list of CAs of the node's own kubelet: written to a copy of its file, so that nothing changes.
    if ($Kubelet) {
        $file = Join-Path (New-Place 'kubelet') 'ca.crt'
        Copy-Item $ClientCAFile $file
        $result = Invoke-Landing $file $file @('--confirm', $Kubelet, '--confirm-timeout', '10s')
        Report 'the kubelet advertises the names in its file' `
            'the kubelet advertised the same names before: a new key under an old name does not show' $result.detail
    }

    if ($DiskFull) {
        $disk = Join-Path $root 'disk.vhd'
        @("create vdisk file=`"$disk`" maximum=8 type=fixed", 'attach vdisk', 'create partition primary',
            'format fs=ntfs quick', 'assign letter=Y') | Set-Content "$disk.txt"
        diskpart /s "$disk.txt" | Out-Null
        try {
            Copy-Item $old 'Y:\ca.crt'
            fsutil file createnew 'Y:\filler' ((Get-Volume -DriveLetter Y).SizeRemaining) | Out-Null
            $many = Join-Path $root 'many.pem'
            [IO.File]::WriteAllText($many, -join (1..100 | ForEach-Object { New-Authority "many $_" }))
            Report 'a full disk' 7 (Invoke-Landing $many 'Y:\ca.crt').code
            Report 'a full disk: the old file is whole' (Get-FileHash $old).Hash (Get-FileHash 'Y:\ca.crt').Hash
            Report 'a full disk: stray files' 0 @(Get-ChildItem 'Y:\' -Filter 'ca.crt.courier-*').Count
        } finally {
            "select vdisk file=`"$disk`"", 'detach vdisk' | Set-Content "$disk.txt"
            diskpart /s "$disk.txt" | Out-Null
        }
    }
} finally {
    cmd /c rmdir (Join-Path $root 'junction') 2>$null
    Remove-Item -Recurse -Force "\\?\$root" -ErrorAction SilentlyContinue
}
"$script:different lines differ"
exit $script:different
